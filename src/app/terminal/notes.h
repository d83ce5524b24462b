// Notes: what a command tells people beside its result, a line each on standard error.
//
// A command that fails prints one line, its error. Its notes are held back until it is known that it does not fail.
//
// Thread safety: all functions may be called at the same time.
#pragma once

#include <string>

namespace kvcache::app {

// Prints "kvcache: TEXT", or keeps it for ShowNotes. Control characters in the text are escaped.
void AddNote(const std::string& text);

// Adds a note that only those read who ask for it. Flags set `ShowsDetails` (AddVerbose) before a command runs.
void AddDetail(const std::string& text);
bool& ShowsDetails();

// From now on notes wait for ShowNotes.
void HoldNotes();

// Prints the notes that wait. From now on notes wait no more.
void ShowNotes();

}  // namespace kvcache::app
