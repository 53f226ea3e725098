; C. What a function is called is at the bottom of its declarators.

(function_definition declarator: (_) @declarator) @function
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @union
(enum_specifier name: (_) @name body: (_)) @enum
(type_definition declarator: (_) @declarator) @type
(preproc_function_def name: (_) @name) @macro

(comment) @lead

(call_expression function: [(identifier) @mention (field_expression field: (field_identifier) @mention)])
(type_identifier) @mention
