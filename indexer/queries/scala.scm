; Scala 2 and 3. Annotations are inside of what they are about.

(class_definition name: (_) @name) @class
(object_definition name: (_) @name) @object
(trait_definition name: (_) @name) @trait
(enum_definition name: (_) @name) @enum
(package_object name: (_) @name) @object
(function_definition name: (_) @name) @function
(function_declaration name: (_) @name) @function
(type_definition name: (_) @name) @type
(val_definition pattern: (identifier) @name value: (lambda_expression)) @function
(given_definition name: (_) @name) @object
(extension_definition "extension" @name) @extension

(comment) @lead
(block_comment) @lead

(call_expression function: [(identifier) @mention (field_expression field: (identifier) @mention)])
(type_identifier) @mention
(instance_expression (type_identifier) @mention)
