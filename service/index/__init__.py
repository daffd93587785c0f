"""What is served: generations, their updates and rebuilds."""
