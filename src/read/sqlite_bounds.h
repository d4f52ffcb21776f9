// What SQL and databases of others may do: read and compute, in bounds.
#pragma once

#include <sqlite3.h>

#include <string>

namespace trainmon {

// For a connection to a database that somebody else may have written. Nothing in its schema is
// trusted, and values are 64 MiB at most. Its views call functions that only compute and do not
// recurse.
void distrust(sqlite3* database);

// For a connection that carries out a user's own SELECT: it reads and calls functions that only
// compute. `refused` gets the name of a function that is refused, and stays where it is as long as
// the connection lives.
void allow_reading_only(sqlite3* database, std::string& refused);

}  // namespace trainmon
