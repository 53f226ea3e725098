; C#. Attributes and modifiers are inside of what they are about.

(namespace_declaration name: (_) @name) @namespace
(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(struct_declaration name: (_) @name) @struct
(enum_declaration name: (_) @name) @enum
(record_declaration name: (_) @name) @record
(delegate_declaration name: (_) @name) @type
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @constructor
(destructor_declaration name: (_) @name) @method
(property_declaration name: (_) @name) @property
(indexer_declaration "this" @name) @property
(operator_declaration operator: _ @name) @method
(event_declaration name: (_) @name) @property
(local_function_statement name: (_) @name) @function

(comment) @lead

(invocation_expression function: [
  (identifier) @mention
  (generic_name (identifier) @mention)
  (member_access_expression name: [(identifier) @mention (generic_name (identifier) @mention)])])
(object_creation_expression type: [(identifier) @mention (generic_name (identifier) @mention)])
(base_list [(identifier) @mention (generic_name (identifier) @mention)])
(attribute name: (identifier) @mention)
