# The version of the interface, which is libgc's. It is compatible with what asks for nothing newer; of a range both ends count (CMake's AnyNewerVersion,
# as libgc's own file has it).
set(PACKAGE_VERSION "8.2.2")
set(PACKAGE_VERSION_COMPATIBLE FALSE)

# Of a range this is its beginning.
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  return()
endif()

if(NOT PACKAGE_FIND_VERSION_RANGE)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
elseif(PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "INCLUDE")
  if(PACKAGE_VERSION VERSION_LESS_EQUAL PACKAGE_FIND_VERSION_MAX)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
elseif(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION_MAX)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
