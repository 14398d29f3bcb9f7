//! Keeps the table of sequences in test programs: a linker that collects garbage drops sections that nothing names, and
//! nothing names an entry of the table.

fn main() {
    println!("cargo::rustc-link-arg-tests=-Wl,-z,nostart-stop-gc");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,nostart-stop-gc");
    println!("cargo::rerun-if-changed=build.rs");
}
