//! Vector instructions of the marker stand where they are used.
//!
//! A function that is compiled for AVX2 or AVX-512 passes that on to what is inlined into it, and to nothing else: the closure that was
//! not inlined calls each instruction as a function, and takes four times as long. Nothing fails then, and nothing warns.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};

use crate::stage;
use crate::workspace::Workspace;

/// Builds the library and looks for instructions that became functions.
pub fn check(workspace: &Workspace) -> Result<()> {
    if !workspace.has("larder-gc") {
        println!("skipped: the workspace has no package larder-gc yet");
        return Ok(());
    }
    let library = stage::build_library(workspace)?;
    let called = called(&names(&library)?);
    if !called.is_empty() {
        bail!(
            "{}: vector instructions are called as functions, since what uses them was not inlined: make it a function with \
             #[inline(always)], not a closure\n{}",
            library.display(),
            called.join("\n")
        );
    }
    Ok(())
}

/// The names of all symbols, also those that nobody else sees.
fn names(library: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let file = object::File::parse(&*bytes)
        .with_context(|| format!("{} is not a readable shared object", library.display()))?;
    let names: Vec<String> = file.symbols().filter_map(|symbol| Some(symbol.name().ok()?.to_owned())).collect();
    if !names.iter().any(|name| name.contains("larder_trace")) {
        bail!("{} has no symbol of larder-trace: it was stripped, and says nothing", library.display());
    }
    Ok(names)
}

/// Those of the module in which `core` has its instructions.
fn called(names: &[String]) -> Vec<String> {
    names.iter().filter(|name| name.contains("core_arch")).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::called;

    #[test]
    fn an_instruction_that_is_a_function_is_found() {
        let names = [
            "_RNvNtNtNtCs4core9core_arch3x864avx218__mm256_setzero_si256",
            "_ZN4core9core_arch3x864avx215_mm256_or_si25617h0123456789abcdefE",
            "_RNvMs_NtCs12larder_trace6markerINtB4_6MarkerE10drain_avx2",
        ];
        let found = called(&names.map(str::to_owned));
        assert_eq!(found, names[..2]);
    }
}
