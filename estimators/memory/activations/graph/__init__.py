"""An autograd graph of operations without values: what it saves for its backward pass, and what it moves."""
