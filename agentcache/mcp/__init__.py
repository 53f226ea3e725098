"""Navigation for agents over the Model Context Protocol: what they read this way is what is kept warm."""
