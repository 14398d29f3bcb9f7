//! The import rule: which crate of the workspace may import which. ARCHITECTURE.md has the same table in words.
//!
//! Arrows point down only. The rule is about crates of this workspace; crates from the registry are a matter for review.

use cargo_metadata::{DependencyKind, Package};

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the stack of the runtime: 0 is the lowest layer.
    Layer(u8),
    /// Beside it: reads what the runtime writes.
    Beside,
    /// Programs that experiment with heaps.
    Experiments,
    /// Tests and tasks.
    Dev,
}
use Place::{Beside, Dev, Experiments, Layer};

/// What a crate may import.
#[derive(Clone, Copy, Debug)]
enum May {
    /// These crates.
    Import(&'static [&'static str]),
    /// Every crate of the layers from the first to the second.
    ImportLayers(u8, u8),
    /// Every crate.
    ImportAny,
}

struct Row {
    name: &'static str,
    place: Place,
    may: May,
    no_std: bool,
}

const fn row(name: &'static str, place: Place, may: May) -> Row {
    Row { name, place, may, no_std: matches!(place, Layer(_)) }
}

const TABLE: &[Row] = &[
    row("larder-units", Layer(0), May::Import(&[])),
    row("larder-sys", Layer(1), May::Import(&["larder-units"])),
    row("larder-policy", Layer(1), May::Import(&["larder-units"])),
    row("larder-events", Layer(1), May::Import(&["larder-units"])),
    row("larder-sync", Layer(2), May::Import(&["larder-units", "larder-sys"])),
    row("larder-percpu", Layer(2), May::Import(&["larder-units", "larder-sys", "larder-sync", "larder-events"])),
    row("larder-lab", Layer(3), May::ImportLayers(0, 2)),
    row("larder-blocks", Layer(3), May::ImportLayers(0, 2)),
    row("larder-threads", Layer(3), May::ImportLayers(0, 2)),
    row("larder-trace", Layer(3), May::ImportLayers(0, 2)),
    row("larder-fixed", Layer(4), May::ImportLayers(0, 3)),
    row("larder-moving", Layer(4), May::ImportLayers(0, 3)),
    row("larder-interlock", Layer(4), May::ImportLayers(0, 3)),
    // The door for Rust programs, which have `std`.
    Row { name: "larder", place: Layer(5), may: May::ImportLayers(0, 4), no_std: false },
    row("larder-gc", Layer(5), May::ImportLayers(0, 4)),
    row("larder-gccpp", Layer(5), May::ImportLayers(0, 4)),
    row("larder-cs", Layer(5), May::ImportLayers(0, 4)),
    // Goes into programs that are not ours, beside no heap, and has `std`.
    Row { name: "larder-locks", place: Layer(5), may: May::ImportLayers(0, 4), no_std: false },
    row("larder-malloc", Layer(5), May::ImportLayers(0, 4)),
    row("larder-vm", Layer(5), May::ImportLayers(0, 4)),
    row("larder-preload", Layer(5), May::ImportLayers(0, 4)),
    row("larder-snapshot", Beside, May::Import(&["larder-units", "larder-policy", "larder-events"])),
    row("larder-predict", Beside, May::Import(&["larder-units", "larder-policy", "larder-events"])),
    row("larder-cli", Beside, May::Import(&["larder-units", "larder-policy", "larder-events", "larder-sys"])),
    row("larder-experiments", Experiments, May::ImportLayers(0, 5)),
    row("larder-testkit", Dev, May::ImportAny),
    row("xtask", Dev, May::ImportAny),
];

fn row_of(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

/// The runtime crates, which must do without `std`.
pub fn no_std_crates() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| row.no_std).map(|row| row.name)
}

/// Every import between `packages` that the table does not allow, and every package that it does not know.
pub fn violations(packages: &[&Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        let Some(importer) = row_of(&package.name) else {
            found.push(format!(
                "{} has no place in the layers: add it to the table in ARCHITECTURE.md and in xtask/src/check/layers.rs",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let is_ours = packages.iter().any(|other| other.name == dependency.name) && dependency.path.is_some();
            let Some(imported) = row_of(&dependency.name).filter(|_| is_ours) else { continue };
            if !allowed(importer, imported, dependency.kind) {
                found.push(arrow(importer, imported, dependency.kind));
            }
        }
    }
    found
}

fn allowed(importer: &Row, imported: &Row, kind: DependencyKind) -> bool {
    if imported.place == Dev && importer.place != Dev {
        return kind == DependencyKind::Development && imported.name == "larder-testkit";
    }
    match importer.may {
        May::Import(names) => names.contains(&imported.name),
        May::ImportLayers(lowest, highest) => {
            matches!(imported.place, Layer(layer) if (lowest..=highest).contains(&layer))
        }
        May::ImportAny => true,
    }
}

/// The sentence for one import that is not allowed.
fn arrow(importer: &Row, imported: &Row, kind: DependencyKind) -> String {
    let how = match kind {
        DependencyKind::Development => " for its tests",
        DependencyKind::Build => " for its build script",
        _ => "",
    };
    let may = match importer.may {
        May::Import([]) => "nothing of this workspace".to_owned(),
        May::Import(names) => names.join(", "),
        May::ImportLayers(lowest, highest) => format!("the crates of layers {lowest} to {highest}"),
        May::ImportAny => "every crate".to_owned(),
    };
    let (from, to) = (importer.name, imported.name);
    format!("{from} ({}) -> {to} ({}){how}: {from} may import {may}", words(importer.place), words(imported.place))
}

fn words(place: Place) -> String {
    match place {
        Layer(layer) => format!("layer {layer}"),
        Beside => "beside the layers".to_owned(),
        Experiments => "experiments".to_owned(),
        Dev => "dev".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cargo_metadata::MetadataCommand;

    /// Metadata, as cargo prints it, of a workspace with these packages and these imports (from, to, kind).
    fn violations_of(packages: &[&str], imports: &[(&str, &str, &str)]) -> Vec<String> {
        let package = |name: &&str| {
            let dependencies: Vec<String> = imports
                .iter()
                .filter(|(from, _, _)| from == name)
                .map(|(_, to, kind)| {
                    let kind = if kind.is_empty() { "null".to_owned() } else { format!("\"{kind}\"") };
                    format!(
                        r#"{{"name":"{to}","source":null,"req":"*","kind":{kind},"rename":null,"optional":false,
                        "uses_default_features":true,"features":[],"target":null,"registry":null,"path":"/w/{to}"}}"#
                    )
                })
                .collect();
            format!(
                r#"{{"name":"{name}","version":"0.1.0","id":"{name}","license":null,"license_file":null,
                "description":null,"source":null,"dependencies":[{}],"targets":[],"features":{{}},
                "manifest_path":"/w/{name}/Cargo.toml","categories":[],"keywords":[],"readme":null,"repository":null,
                "homepage":null,"documentation":null,"edition":"2024","metadata":null,"publish":null,"authors":[],
                "default_run":null,"rust_version":null,"links":null}}"#,
                dependencies.join(",")
            )
        };
        let ids: Vec<String> = packages.iter().map(|name| format!("\"{name}\"")).collect();
        let json = format!(
            r#"{{"packages":[{}],"workspace_members":[{ids}],"workspace_default_members":[{ids}],"resolve":null,
            "workspace_root":"/w","target_directory":"/w/target","version":1,"metadata":null}}"#,
            packages.iter().map(package).collect::<Vec<_>>().join(","),
            ids = ids.join(",")
        );
        let metadata = MetadataCommand::parse(json).expect("synthetic metadata is well formed");
        violations(&metadata.workspace_packages())
    }

    fn every_crate() -> Vec<&'static str> {
        TABLE.iter().map(|row| row.name).collect()
    }

    #[test]
    fn the_downward_arrows_are_allowed() {
        let allowed = [
            ("larder-sys", "larder-units", ""),
            ("larder-policy", "larder-units", ""),
            ("larder-sync", "larder-sys", ""),
            ("larder-percpu", "larder-sync", ""),
            ("larder-percpu", "larder-events", ""),
            ("larder-lab", "larder-percpu", ""),
            ("larder-blocks", "larder-policy", ""),
            ("larder-fixed", "larder-trace", ""),
            ("larder-fixed", "larder-units", "build"),
            ("larder-gc", "larder-fixed", ""),
            ("larder-gc", "larder-units", ""),
            ("larder-cli", "larder-sys", ""),
            ("larder-predict", "larder-policy", ""),
            ("larder-experiments", "larder-gc", ""),
            ("larder-experiments", "larder-moving", ""),
            ("larder-testkit", "larder-gc", ""),
            ("larder-testkit", "larder-cli", ""),
            ("xtask", "larder-testkit", ""),
            ("larder-units", "larder-testkit", "dev"),
        ];
        assert_eq!(violations_of(&every_crate(), &allowed), Vec::<String>::new());
    }

    #[test]
    fn other_arrows_are_not() {
        let forbidden = [
            ("larder-units", "larder-sys", ""),
            ("larder-policy", "larder-sys", ""),
            ("larder-events", "larder-sys", ""),
            ("larder-sys", "larder-sync", ""),
            ("larder-sync", "larder-percpu", ""),
            ("larder-sync", "larder-events", ""),
            ("larder-percpu", "larder-policy", ""),
            // Crates of one layer do not import one another.
            ("larder-lab", "larder-blocks", ""),
            ("larder-trace", "larder-threads", ""),
            ("larder-fixed", "larder-moving", ""),
            ("larder-gc", "larder-malloc", ""),
            ("larder-blocks", "larder-fixed", ""),
            ("larder-fixed", "larder-gc", ""),
            // The tools never link a heap.
            ("larder-cli", "larder-fixed", ""),
            ("larder-cli", "larder-gc", "build"),
            ("larder-predict", "larder-sys", ""),
            ("larder-snapshot", "larder-trace", ""),
            ("larder-gc", "larder-cli", ""),
            ("larder-experiments", "larder-cli", ""),
            // Nobody but dev imports dev, tests the testkit excepted.
            ("larder-fixed", "larder-testkit", ""),
            ("larder-gc", "larder-testkit", "build"),
            ("larder-units", "xtask", "dev"),
            ("larder-units", "larder-sys", "dev"),
        ];
        for import in forbidden {
            let found = violations_of(&every_crate(), &[import]);
            assert_eq!(found.len(), 1, "{import:?} must be found once: {found:?}");
            assert!(found[0].contains(&format!("{} (", import.0)), "{found:?} names the importer");
            assert!(found[0].contains(&format!("-> {} (", import.1)), "{found:?} names the imported crate");
        }
    }

    #[test]
    fn an_arrow_is_named_in_full() {
        let found = violations_of(&["larder-sys", "larder-sync"], &[("larder-sys", "larder-sync", "dev")]);
        assert_eq!(
            found,
            ["larder-sys (layer 1) -> larder-sync (layer 2) for its tests: larder-sys may import larder-units"]
        );
    }

    #[test]
    fn an_unknown_crate_has_no_place() {
        let found = violations_of(&["larder-units", "larder-common"], &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("larder-common has no place in the layers"), "{found:?}");
    }

    #[test]
    fn the_registry_is_not_ruled() {
        // A crate that the workspace does not have, whatever its name.
        assert_eq!(violations_of(&["larder-units"], &[("larder-units", "libc", "")]), Vec::<String>::new());
    }
}
