WORD = "a dependency"
