; Go. A declaration of one type is that type; grouped ones are types by themselves.

(function_declaration name: (_) @name) @function
(method_declaration name: (_) @name) @method
(type_declaration . (type_spec name: (_) @name) .) @type
(type_declaration . (type_alias name: (_) @name) .) @type
(type_declaration "(" (type_spec name: (_) @name) @type)
(type_declaration "(" (type_alias name: (_) @name) @type)
(source_file (var_declaration . (var_spec name: (identifier) @name value: (expression_list (func_literal))) .) @function)

(comment) @lead

(call_expression function: [(identifier) @mention (selector_expression field: (field_identifier) @mention)])
(type_identifier) @mention
