; PHP. Attributes are inside of what they are about.

(namespace_definition name: (_) @name body: (_)) @namespace
(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(trait_declaration name: (_) @name) @trait
(enum_declaration name: (_) @name) @enum
(method_declaration name: (_) @name) @method
(function_definition name: (_) @name) @function
(expression_statement (assignment_expression
  left: (variable_name (name) @name) right: [(anonymous_function) (arrow_function)])) @function

(comment) @lead

(function_call_expression function: [(name) @mention (qualified_name (name) @mention)])
(member_call_expression name: (name) @mention)
(scoped_call_expression name: (name) @mention)
(object_creation_expression [(name) @mention (qualified_name (name) @mention)])
(base_clause [(name) @mention (qualified_name (name) @mention)])
(class_interface_clause [(name) @mention (qualified_name (name) @mention)])
(named_type [(name) @mention (qualified_name (name) @mention)])
