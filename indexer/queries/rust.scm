; Rust. Attributes are siblings of what they are about; an impl is named by its type.

(struct_item name: (_) @name) @struct
(enum_item name: (_) @name) @enum
(union_item name: (_) @name) @union
(type_item name: (_) @name) @type
(trait_item name: (_) @name) @trait
(impl_item type: [
  (type_identifier) @name
  (generic_type type: (type_identifier) @name)
  (scoped_type_identifier name: (type_identifier) @name)
  (generic_type type: (scoped_type_identifier name: (type_identifier) @name))
  (reference_type) @name (primitive_type) @name (tuple_type) @name (array_type) @name (dynamic_type) @name]) @impl
(mod_item name: (_) @name body: (_)) @namespace
(function_item name: (_) @name) @function
(function_signature_item name: (_) @name) @function
(macro_definition name: (_) @name) @macro

(attribute_item) @lead
(line_comment) @lead
(block_comment) @lead

(call_expression function: [
  (identifier) @mention
  (field_expression field: (field_identifier) @mention)
  (scoped_identifier name: (identifier) @mention)
  (generic_function function: [
    (identifier) @mention
    (field_expression field: (field_identifier) @mention)
    (scoped_identifier name: (identifier) @mention)])])
(macro_invocation macro: [(identifier) @mention (scoped_identifier name: (identifier) @mention)])
(type_identifier) @mention
