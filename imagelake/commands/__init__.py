"""The commands of `imagelake`, by what they are about. Each reads its options, calls the code that does the work, and prints."""
