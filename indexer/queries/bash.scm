; Bash and its like.

(function_definition name: (_) @name) @function

(comment) @lead

(command name: (command_name (word) @mention))
