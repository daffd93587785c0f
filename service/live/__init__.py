"""What is served (serving.py), how another generation takes its place (switching.py), how updates reach it
(taking_over.py), and the models' interfaces.

Live            follows the store; its `current` is replaced as a whole
  Serving       what a request holds: the model, the source of vectors and
    Snapshot    a generation with its updates up to a revision; over
      Generation  the files of one build, which never change
"""
