"""What is served: how a generation takes the place of another, and how updates reach it (switching.py); a second one on
trial (trial.py); what is searched (searchable.py); and the models' interfaces (models.py).

Live            follows the store; its `current` is replaced as a whole
  Serving       what a request holds: the model and the parts of the pool (ranking/parts.py); of a part in this process
    Searchable  the source of vectors and
      Snapshot  a generation with its updates up to a revision; over
        Generation  the files of one build, which never change
"""
