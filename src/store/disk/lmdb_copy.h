// Copies a store's tables to a new file, without free pages.
//
// Thread safety: that of the transaction. Another process must not use the new file.
#pragma once

#include <lmdb.h>

#include <string>

namespace kvcache::store {

class LmdbEnvironment;

// Writes what `transaction` sees to `path`, in place of a file that is there, and makes it durable. Returns 0, an
// error of LMDB or of the system, or a number of lmdb_calls.h. The file is of no use after an error.
int CopyTables(const LmdbEnvironment& environment, MDB_txn* transaction, const std::string& path);

}  // namespace kvcache::store
