//! Runtime crates do without `std` and `alloc`: the process's malloc may be ours, or held by a stopped thread.

use std::fs;

use anyhow::{Context, Result};

use super::layers;
use crate::workspace::Workspace;

/// Every runtime crate of the workspace whose `lib.rs` does not say `no_std`, or links a hosted crate always.
pub fn violations(workspace: &Workspace) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in layers::no_std_crates() {
        let Some(package) = workspace.packages().into_iter().find(|package| package.name == name) else { continue };
        let Some(library) = package.targets.iter().find(|target| target.is_lib() || target.is_cdylib()) else {
            found.push(format!("{name} has no library target"));
            continue;
        };
        let text =
            fs::read_to_string(&library.src_path).with_context(|| format!("cannot read {}", library.src_path))?;
        found.extend(violations_in(&text).into_iter().map(|what| format!("{name}: {} {what}", library.src_path)));
    }
    Ok(found)
}

fn violations_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let has_attribute = text
        .lines()
        .map(str::trim)
        .any(|line| line == "#![no_std]" || (line.starts_with("#![cfg_attr(") && line.ends_with(", no_std)]")));
    if !has_attribute {
        found.push("has no line #![no_std], which a runtime crate must have".to_owned());
    }
    let mut before = "";
    // Of the crate itself: a module for tests, whose lines are indented, may have what it likes.
    for line in text.lines() {
        let hosted = ["extern crate std", "extern crate alloc"].into_iter().find(|start| line.starts_with(start));
        if let Some(hosted) = hosted.filter(|_| !before.starts_with("#[cfg(")) {
            found.push(format!("has `{hosted}` without a #[cfg(...)] on the line before"));
        }
        before = line;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::violations_in;

    #[test]
    fn no_std_with_or_without_condition_is_good() {
        assert!(violations_in("//! Words.\n#![no_std]\n").is_empty());
        assert!(violations_in("#![cfg_attr(not(any(test, loom)), no_std)]\n").is_empty());
        assert!(violations_in("#![no_std]\n#[cfg(test)]\nextern crate std;\n").is_empty());
        assert!(violations_in("#![no_std]\n#[cfg(test)]\nmod tests {\n    extern crate std;\n}\n").is_empty());
    }

    #[test]
    fn std_is_found() {
        assert_eq!(violations_in("//! #![no_std] is only mentioned.\n").len(), 1);
        assert_eq!(violations_in("#![no_std]\nextern crate std;\n").len(), 1);
        assert_eq!(violations_in("#![no_std]\nextern crate alloc;\n").len(), 1);
    }
}
