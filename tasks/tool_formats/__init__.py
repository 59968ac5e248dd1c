"""How models call tools and think aloud: reading it from their text, and the grammars that make them call. Pure."""
