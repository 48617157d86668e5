"""An answer as a file to share: a report of one HTML file, or a picture; imported only where one is asked for."""
