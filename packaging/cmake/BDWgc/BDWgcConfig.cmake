# find_package(BDWgc) finds Larder: targets BDWgc::gc and BDWgc::gccpp, BDWgc::gc_static and BDWgc::gccpp_static.
#
# The folder that this file was staged in may be moved: everything is found from here.

get_filename_component(_larder_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)

if(NOT TARGET BDWgc::gc)
  add_library(BDWgc::gc SHARED IMPORTED)
  set_target_properties(BDWgc::gc PROPERTIES
    IMPORTED_LOCATION "${_larder_prefix}/lib/libgc.so.1"
    IMPORTED_SONAME "libgc.so.1"
    INTERFACE_INCLUDE_DIRECTORIES "${_larder_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads")
endif()

if(NOT TARGET BDWgc::gccpp)
  add_library(BDWgc::gccpp SHARED IMPORTED)
  set_target_properties(BDWgc::gccpp PROPERTIES
    IMPORTED_LOCATION "${_larder_prefix}/lib/libgccpp.so.1"
    IMPORTED_SONAME "libgccpp.so.1"
    INTERFACE_LINK_LIBRARIES "BDWgc::gc")
endif()

if(NOT TARGET BDWgc::gc_static)
  add_library(BDWgc::gc_static STATIC IMPORTED)
  set_target_properties(BDWgc::gc_static PROPERTIES
    IMPORTED_LOCATION "${_larder_prefix}/lib/liblarder_gc.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_larder_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
endif()

if(NOT TARGET BDWgc::gccpp_static)
  add_library(BDWgc::gccpp_static STATIC IMPORTED)
  set_target_properties(BDWgc::gccpp_static PROPERTIES
    IMPORTED_LOCATION "${_larder_prefix}/lib/libgccpp.a"
    INTERFACE_LINK_LIBRARIES "BDWgc::gc_static")
endif()

unset(_larder_prefix)
