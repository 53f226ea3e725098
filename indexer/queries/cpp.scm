; C++. What a function is called is at the bottom of its declarators; templates wrap what they are of.

(function_definition declarator: (_) @declarator) @function
(class_specifier name: (_) @name body: (_)) @class
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @union
(enum_specifier name: (_) @name body: (_)) @enum
(namespace_definition name: (_) @name) @namespace
(type_definition declarator: (_) @declarator) @type
(alias_declaration name: (_) @name) @type
(concept_definition name: (_) @name) @type
(preproc_function_def name: (_) @name) @macro
(translation_unit (declaration declarator: (init_declarator declarator: (_) @declarator value: (lambda_expression))) @function)

(template_declaration) @wrap
(linkage_specification body: (function_definition)) @wrap
(comment) @lead

(call_expression function: [
  (identifier) @mention
  (field_expression field: (field_identifier) @mention)
  (qualified_identifier name: (identifier) @mention)
  (template_function name: (identifier) @mention)])
(type_identifier) @mention
