; Python. Decorators are siblings of what they decorate, inside a decorated_definition.

(class_definition name: (identifier) @name) @class
(function_definition name: (identifier) @name) @function
(decorated_definition) @wrap

; names bound to lambdas
(expression_statement
  (assignment left: (identifier) @name right: (lambda))) @function

; PEP 695
(type_alias_statement left: (type (identifier) @name)) @type

(comment) @lead

(call function: [
  (identifier) @mention
  (attribute attribute: (identifier) @mention)])
(class_definition superclasses: (argument_list [
  (identifier) @mention
  (attribute attribute: (identifier) @mention)]))
(decorator [
  (identifier) @mention
  (attribute attribute: (identifier) @mention)])
(import_from_statement name: (dotted_name (identifier) @mention))
(import_from_statement name: (aliased_import name: (dotted_name (identifier) @mention)))
(type (identifier) @mention)
(type (attribute attribute: (identifier) @mention))
(except_clause (identifier) @mention)
