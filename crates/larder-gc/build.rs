//! Names the library as its clients ask for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgc.so.1");
    // The library has signal handlers, marker threads and fork handlers: unloading it would leave them behind.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
