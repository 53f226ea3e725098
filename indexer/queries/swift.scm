; Swift. Classes, structs, enums, extensions and actors are one kind of node; attributes are inside.

(class_declaration declaration_kind: "class" name: (_) @name) @class
(class_declaration declaration_kind: "actor" name: (_) @name) @class
(class_declaration declaration_kind: "struct" name: (_) @name) @struct
(class_declaration declaration_kind: "enum" name: (_) @name) @enum
(class_declaration declaration_kind: "extension" name: (_) @name) @extension
(protocol_declaration name: (_) @name) @protocol
(function_declaration name: (simple_identifier) @name) @function
(protocol_function_declaration name: (simple_identifier) @name) @method
(init_declaration "init" @name) @constructor
(deinit_declaration "deinit" @name) @method
(subscript_declaration "subscript" @name) @property
(property_declaration name: (pattern bound_identifier: (_) @name) computed_value: (_)) @property
(property_declaration name: (pattern bound_identifier: (_) @name) value: (lambda_literal)) @function
(typealias_declaration name: (_) @name) @type

(comment) @lead
(multiline_comment) @lead

(call_expression [(simple_identifier) @mention (navigation_expression suffix: (navigation_suffix suffix: (simple_identifier) @mention))])
(type_identifier) @mention
