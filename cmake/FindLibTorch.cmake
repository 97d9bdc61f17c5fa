# Finds the CPU half of LibTorch: a pip wheel, an unpacked LibTorch archive or Debian's libtorch-dev. PyTorch's own package file is not used,
# since that of a CUDA build asks for nvcc and the CUDA toolkit.
#   LibTorch_ROOT  a folder that holds include/ and lib/ (site-packages/torch, libtorch, /usr); else python3's torch package, then the system
# Gives LibTorch_FOUND, LibTorch_VERSION, LibTorch_LIBRARY_DIR and the target LibTorch::cpu; LibTorch::cuda where LibTorch has its CUDA half
# and the headers and the library of the CUDA runtime are there: of the nvidia wheels beside torch, or of a toolkit (CUDAToolkit_ROOT,
# /usr/local/cuda, Debian's nvidia-cuda-toolkit).
include(FindPackageHandleStandardArgs)

set(_libtorch_places ${LibTorch_ROOT} $ENV{LibTorch_ROOT})
if(NOT _libtorch_places)
  find_program(LibTorch_PYTHON NAMES python3 python)
  mark_as_advanced(LibTorch_PYTHON)
  if(LibTorch_PYTHON)
    execute_process( # where the package lies; importing it would take seconds
      COMMAND ${LibTorch_PYTHON} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE _libtorch_places OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()

find_path(LibTorch_INCLUDE_DIR torch/script.h HINTS ${_libtorch_places} PATH_SUFFIXES include)
file(GLOB _libtorch_cuda_places ${LibTorch_INCLUDE_DIR}/../../nvidia/cu* ${LibTorch_INCLUDE_DIR}/../../nvidia/cuda_runtime)
list(APPEND _libtorch_cuda_places ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} /usr/local/cuda)
find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${_libtorch_places} ${LibTorch_INCLUDE_DIR}/.. PATH_SUFFIXES lib)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${_libtorch_places} ${LibTorch_INCLUDE_DIR}/.. PATH_SUFFIXES lib)
find_path(LibTorch_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${_libtorch_cuda_places} PATH_SUFFIXES include)
find_library(LibTorch_CUDART_LIBRARY NAMES libcudart.so.13 libcudart.so.12 cudart NAMES_PER_DIR HINTS ${_libtorch_cuda_places} PATH_SUFFIXES lib lib64)
mark_as_advanced(LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY LibTorch_CUDA_INCLUDE_DIR LibTorch_CUDART_LIBRARY)
find_path(LibTorch_API_INCLUDE_DIR torch/version.h HINTS ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_libtorch_places} ${LibTorch_INCLUDE_DIR}/.. PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_libtorch_places} ${LibTorch_INCLUDE_DIR}/.. PATH_SUFFIXES lib)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_API_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)

# The version stands in torch/headeronly/version.h, before 2.9 in torch/version.h.
set(LibTorch_VERSION "")
foreach(_file ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h ${LibTorch_API_INCLUDE_DIR}/torch/version.h)
  if(EXISTS ${_file} AND NOT LibTorch_VERSION)
    file(STRINGS ${_file} _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+$")
    list(TRANSFORM _lines REPLACE ".* ([0-9]+)$" "\\1")
    list(JOIN _lines "." LibTorch_VERSION)
  endif()
endforeach()

find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR LibTorch_API_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  cmake_path(GET LibTorch_CPU_LIBRARY PARENT_PATH LibTorch_LIBRARY_DIR)
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_API_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES ${LibTorch_C10_LIBRARY}
    # A CUDA build's libtorch_cpu needs CUDA libraries, which the loader finds beside it and the linker does not.
    INTERFACE_LINK_OPTIONS "LINKER:--unresolved-symbols=ignore-in-shared-libs")
  # Wheels before 2.7 have the old std::string; their package file says so.
  set(_file ${LibTorch_LIBRARY_DIR}/../share/cmake/Torch/TorchConfig.cmake)
  if(EXISTS ${_file})
    file(STRINGS ${_file} _lines REGEX "D_GLIBCXX_USE_CXX11_ABI=0")
    if(_lines)
      set_property(TARGET LibTorch::cpu PROPERTY INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=0)
    endif()
  endif()
endif()

if(LibTorch_FOUND AND LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND LibTorch_CUDA_INCLUDE_DIR AND LibTorch_CUDART_LIBRARY
   AND NOT TARGET LibTorch::cuda)
  add_library(LibTorch::cuda SHARED IMPORTED)
  set_target_properties(LibTorch::cuda PROPERTIES
    IMPORTED_LOCATION ${LibTorch_CUDA_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_CUDA_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "LibTorch::cpu;${LibTorch_C10_CUDA_LIBRARY};${LibTorch_CUDART_LIBRARY}"
    # Nothing names a symbol of libtorch_cuda, whose kernels register themselves when it is loaded.
    INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed")
endif()
