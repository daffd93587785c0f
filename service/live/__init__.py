"""What is served (serving.py), how another generation takes its place (switching.py), and the models' interfaces."""
