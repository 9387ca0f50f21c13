"""An HTTP request becomes stored jobs: its options and its input are read, checked, admitted and stored."""
