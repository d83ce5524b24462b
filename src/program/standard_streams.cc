// Opens the descriptors 0, 1 and 2 of a program that was started without some of them (`PROGRAM <&- >&- 2>&-`, or by
// a supervisor). The next file or socket would get such a number, and lines for people would be written into it.
//
// The function runs before main, and before the objects of other sources are made: those might open files.
// CMakeLists.txt links this into each program, and into no library.
#include <fcntl.h>
#include <unistd.h>

namespace {

// Standard input is then empty, and standard error goes nowhere. Standard output is opened for reading: each write
// fails with EBADF, as on the closed one, so that a program still says that its output is lost.
[[gnu::constructor(101)]] void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The new descriptor is the lowest free one, which is `fd`. Programs that are started inherit it.
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) == fd) continue;
    (void)open("/",
               O_PATH);  // without /dev: no read and no write succeeds, but the number is taken
  }
}

}  // namespace
