//! Names the library, and keeps it loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liblarder_vm.so");
    // A thread's `rseq_cs` may point into the library long after its last call: unloading it would kill the thread. And a
    // heap's collectors run its code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
