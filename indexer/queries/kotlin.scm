; Kotlin. Annotations are among the modifiers, inside of what they are about.

(class_declaration "interface" name: (_) @name) @interface
(class_declaration (modifiers (class_modifier "enum")) name: (_) @name) @enum
(class_declaration name: (_) @name) @class
(object_declaration name: (_) @name) @object
(companion_object "companion" @name) @object
(function_declaration name: (_) @name) @function
(secondary_constructor "constructor" @name) @constructor
(anonymous_initializer "init" @name) @constructor
(property_declaration (variable_declaration (identifier) @name) (lambda_literal)) @function
(property_declaration (variable_declaration (identifier) @name) (getter)) @property
(type_alias type: (_) @name) @type

; this grammar takes an annotation on a line of its own for an expression, behind other statements
(source_file (annotated_expression) @lead)
(line_comment) @lead
(block_comment) @lead

(call_expression [(identifier) @mention (navigation_expression (identifier) @mention .)])
(user_type (identifier) @mention)
