; Ruby.

(module name: (_) @name) @namespace
(class name: (_) @name) @class
(singleton_class value: (_) @name) @class
(module body: (body_statement (method name: (_) @name) @method))
(method name: (_) @name) @function
(singleton_method name: (_) @name) @method
(call method: (identifier) @_define (#any-of? @_define "define_method" "define_singleton_method")
  arguments: (argument_list . (simple_symbol) @name)) @method
(assignment left: [(identifier) (constant)] @name right: (lambda)) @function

(comment) @lead

(call method: [(identifier) (constant)] @mention)
(call receiver: (constant) @mention)
(superclass [(constant) @mention (scope_resolution name: (constant) @mention)])
(scope_resolution name: (constant) @mention)
