; TSX: what typescript.scm says, and elements.

(jsx_opening_element name: (identifier) @mention)
(jsx_self_closing_element name: (identifier) @mention)
