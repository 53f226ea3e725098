; TypeScript and TSX. Decorators of members and of exported classes are siblings of what they decorate.

(class_declaration name: (_) @name) @class
(abstract_class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(type_alias_declaration name: (_) @name) @type
(internal_module name: (_) @name) @namespace
(module name: (_) @name) @namespace
(function_declaration name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(function_signature name: (_) @name) @function
(method_definition name: (_) @name) @method
(abstract_method_signature name: (_) @name) @method
(class_body (method_signature name: (_) @name) @method)

; functions and classes bound to names
([(lexical_declaration (variable_declarator name: (identifier) @name
    value: [(arrow_function) (function_expression) (generator_function)]))
  (variable_declaration (variable_declarator name: (identifier) @name
    value: [(arrow_function) (function_expression) (generator_function)]))] @function)
([(lexical_declaration (variable_declarator name: (identifier) @name value: (class)))
  (variable_declaration (variable_declarator name: (identifier) @name value: (class)))] @class)
(public_field_definition name: (_) @name value: [(arrow_function) (function_expression)]) @method
(expression_statement (assignment_expression
  left: [(identifier) @name (member_expression property: (property_identifier) @name)]
  right: [(arrow_function) (function_expression) (generator_function)])) @function

; suites and tests, which are named by a string
(expression_statement (call_expression
  function: (identifier) @_call (#any-of? @_call "describe" "suite" "context")
  arguments: (arguments . (string (string_fragment) @name)))) @suite
(expression_statement (call_expression
  function: (identifier) @_call (#any-of? @_call "it" "test" "specify")
  arguments: (arguments . (string (string_fragment) @name)))) @test

(export_statement) @wrap
(ambient_declaration) @wrap
(expression_statement (internal_module)) @wrap
(comment) @lead
(decorator) @lead

(call_expression function: [(identifier) @mention (member_expression property: (property_identifier) @mention)])
(new_expression constructor: [(identifier) @mention (member_expression property: (property_identifier) @mention)])
(extends_clause value: (identifier) @mention)
(type_identifier) @mention
(import_specifier name: (identifier) @mention)
(import_clause (identifier) @mention)
(decorator (identifier) @mention)
