"""URL lists: pictures fetched politely, from public addresses only, with an outcome for every URL."""
