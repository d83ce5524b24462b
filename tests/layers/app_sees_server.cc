// Only the folder app/serve sees the server: the rest of the program is built without it.
#include "server/server.h"
