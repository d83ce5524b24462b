# Writes the suites of a GoogleTest program as tests of ctest, each of which runs in one process:
#
#   cmake -D PROGRAM=words -D LABEL=text -D FOLDER=path -D FILE=path -P list_suites.cmake
# In a cross build the emulator is in front of the path.
list(JOIN PROGRAM "]=] [=[" words)
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
# "Models/Shift.": the lines of tests are indented.
string(REGEX MATCHALL "\n[A-Za-z][A-Za-z0-9_/]*\\." suites "\n${text}")
if(NOT suites)
  message(FATAL_ERROR "${PROGRAM} lists no tests")
endif()
set(commands "")
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "\n(.*)\\." "\\1" suite "${suite}")
  string(APPEND commands
    "add_test([=[${suite}]=] [=[${words}]=] [=[--gtest_filter=${suite}.*]=])\n"
    "set_tests_properties([=[${suite}]=] PROPERTIES LABELS ${LABEL} TIMEOUT 3600 WORKING_DIRECTORY [=[${FOLDER}]=])\n")
endforeach()
file(WRITE ${FILE} "${commands}")
