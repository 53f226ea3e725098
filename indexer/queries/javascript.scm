; JavaScript and JSX. Exports wrap what they export; decorators are inside of it.

(class_declaration name: (_) @name) @class
(function_declaration name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(method_definition name: (_) @name) @method

; functions and classes bound to names
([(lexical_declaration (variable_declarator name: (identifier) @name
    value: [(arrow_function) (function_expression) (generator_function)]))
  (variable_declaration (variable_declarator name: (identifier) @name
    value: [(arrow_function) (function_expression) (generator_function)]))] @function)
([(lexical_declaration (variable_declarator name: (identifier) @name value: (class)))
  (variable_declaration (variable_declarator name: (identifier) @name value: (class)))] @class)
(field_definition property: (_) @name value: [(arrow_function) (function_expression)]) @method
(expression_statement (assignment_expression
  left: [(identifier) @name (member_expression property: (property_identifier) @name)]
  right: [(arrow_function) (function_expression) (generator_function)])) @function
(expression_statement (assignment_expression
  left: [(identifier) @name (member_expression property: (property_identifier) @name)]
  right: (class))) @class

; suites and tests, which are named by a string
(expression_statement (call_expression
  function: (identifier) @_call (#any-of? @_call "describe" "suite" "context")
  arguments: (arguments . (string (string_fragment) @name)))) @suite
(expression_statement (call_expression
  function: (identifier) @_call (#any-of? @_call "it" "test" "specify")
  arguments: (arguments . (string (string_fragment) @name)))) @test

(export_statement) @wrap
(comment) @lead
(decorator) @lead

(call_expression function: [(identifier) @mention (member_expression property: (property_identifier) @mention)])
(new_expression constructor: [(identifier) @mention (member_expression property: (property_identifier) @mention)])
(class_heritage (identifier) @mention)
(import_specifier name: (identifier) @mention)
(import_clause (identifier) @mention)
(jsx_opening_element name: (identifier) @mention)
(jsx_self_closing_element name: (identifier) @mention)
