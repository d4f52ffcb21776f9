# Callbacks for trainers that own the training loop.
