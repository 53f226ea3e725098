; Java. Annotations and modifiers are inside of what they are about.

(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(record_declaration name: (_) @name) @record
(annotation_type_declaration name: (_) @name) @annotation
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @constructor
(compact_constructor_declaration name: (_) @name) @constructor

(line_comment) @lead
(block_comment) @lead

(method_invocation name: (identifier) @mention)
(type_identifier) @mention
(marker_annotation name: (identifier) @mention)
(annotation name: (identifier) @mention)
