//! The face of `libgc.so.1`: every symbol of Debian's library, of its class, and nothing else. And that of doors with a header
//! of our own: what the header declares, and nothing else.
//!
//! A client resolves its imports when it starts, all of them; a missing symbol stops it even if it is never called. A data
//! symbol smaller than the client was linked for makes the loader copy past its end. A libc name among the exports would
//! catch calls of the whole process, and an undefined `malloc` would make the runtime allocate in a stopped world.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use object::elf::{SHT_GNU_VERDEF, STB_LOCAL, STT_FUNC, STT_GNU_IFUNC, STT_OBJECT};
use object::read::elf::{Dyn, ElfFile64, SectionHeader, Sym};
use object::{Endianness, elf};

use crate::stage;
use crate::workspace::Workspace;

const EXPORTS: &str = include_str!("../../exports.txt");
const SONAME: &str = "libgc.so.1";
const ALLOCATOR: &[&str] =
    &["malloc", "calloc", "realloc", "reallocarray", "free", "posix_memalign", "aligned_alloc", "memalign", "valloc"];

/// What a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Function,
    /// A variable of so many bytes.
    Data(u64),
    /// Neither, by its ELF symbol type.
    Other(u8),
}

/// The dynamic symbols of a shared object.
#[derive(Debug, Default)]
struct Face {
    defined: BTreeMap<String, Class>,
    undefined: Vec<String>,
    soname: Option<String>,
    has_versions: bool,
}

/// Builds the library and compares its face with the list.
pub fn check(workspace: &Workspace) -> Result<()> {
    if !workspace.has("larder-gc") {
        println!("skipped: the workspace has no package larder-gc yet");
        return Ok(());
    }
    let library = stage::build_library(workspace)?;
    let face = face_of(&library)?;
    let found = violations(&face, &listed()?);
    if !found.is_empty() {
        bail!("{}:\n{}", library.display(), found.join("\n"));
    }
    if workspace.has("larder-gccpp") {
        let operators = stage::build_operators(workspace, &library)?;
        let found = operator_violations(&face_of(&operators)?);
        if !found.is_empty() {
            bail!("{}:\n{}", operators.display(), found.join("\n"));
        }
    }
    for (package, library, header, prefix) in DOORS {
        if !workspace.has(package) {
            continue;
        }
        let library = stage::build_door(workspace, package, library)?;
        let header = workspace.root().join("include").join(header);
        let text = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
        let soname = library.file_name().context("a library has a name")?.to_string_lossy();
        let found = door_violations(&face_of(&library)?, &soname, &declared(&text, prefix));
        if !found.is_empty() {
            bail!("{}:\n{}", library.display(), found.join("\n"));
        }
    }
    Ok(())
}

/// Doors with a header of our own: what it declares is what the library exports.
const DOORS: &[(&str, &str, &str, &str)] = &[("larder-vm", "liblarder_vm.so", "larder_vm.h", "larder_vm_")];

/// The functions that a header declares and does not define: the name of a prototype is the word with the prefix before the first
/// parenthesis of a line that begins at the margin.
fn declared(header: &str, prefix: &str) -> BTreeSet<String> {
    let prototypes = header
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter(|line| !["static ", "typedef ", "extern "].iter().any(|begin| line.starts_with(begin)));
    let names = prototypes.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit(|c: char| c != '_' && !c.is_ascii_alphanumeric()).next()?;
        name.starts_with(prefix).then(|| name.to_owned())
    });
    names.collect()
}

fn door_violations(face: &Face, soname: &str, declared: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for name in declared.iter().filter(|&name| face.defined.get(name) != Some(&Class::Function)) {
        found.push(format!("{name} is in the header, and no function of the library"));
    }
    for name in face.defined.keys().filter(|&name| !declared.contains(name)) {
        found.push(format!("{name} is exported and not in the header: others would catch calls of the whole process"));
    }
    found.extend(calls_of_the_allocator(face));
    if face.soname.as_deref() != Some(soname) {
        let is = face.soname.as_deref().unwrap_or("missing");
        found.push(format!(
            "the soname is {is}; a program linked to the file would ask for its path: link with -Wl,-soname,{soname}"
        ));
    }
    found
}

fn calls_of_the_allocator(face: &Face) -> impl Iterator<Item = String> {
    let called = face.undefined.iter().filter(|name| ALLOCATOR.contains(&name.as_str()));
    called.map(|name| format!("{name} is called: the process's allocator may be held by a stopped thread"))
}

/// What Debian's libgccpp.so.1 defines: C++'s operators, and what throws for them.
const OPERATORS: &[&str] = &["_Z18GC_throw_bad_allocv", "_ZdaPv", "_ZdaPvm", "_ZdlPv", "_ZdlPvm", "_Znam", "_Znwm"];

fn operator_violations(face: &Face) -> Vec<String> {
    let mut found = Vec::new();
    for name in OPERATORS.iter().filter(|&&name| face.defined.get(name) != Some(&Class::Function)) {
        found.push(format!("{name} is no function of it: every symbol of Debian's library must exist"));
    }
    for name in face.defined.keys().filter(|name| !OPERATORS.contains(&name.as_str())) {
        found.push(format!("{name} is exported: others than the operators would catch calls of the whole process"));
    }
    if face.soname.as_deref() != Some("libgccpp.so.1") {
        found.push("the soname is not libgccpp.so.1".to_owned());
    }
    found
}

/// The lines of `exports.txt`.
fn listed() -> Result<BTreeMap<&'static str, Class>> {
    let mut list = BTreeMap::new();
    for line in EXPORTS.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let (name, class) = match words[..] {
            ["function", "-", name] => (name, Class::Function),
            ["data", size, name] => (name, Class::Data(size.parse().context("a size in exports.txt")?)),
            _ => bail!("exports.txt: `{line}` is not `function - NAME` or `data SIZE NAME`"),
        };
        list.insert(name, class);
    }
    Ok(list)
}

fn violations(face: &Face, listed: &BTreeMap<&str, Class>) -> Vec<String> {
    let mut found = Vec::new();
    for (&name, &wanted) in listed {
        match (face.defined.get(name), wanted) {
            (None, _) => found.push(format!("{name} is missing: every symbol of Debian's library must exist")),
            (Some(Class::Function), Class::Function) => {}
            (Some(&Class::Data(size)), Class::Data(least)) if size >= least => {}
            (Some(&Class::Data(size)), Class::Data(least)) => {
                found.push(format!("{name} has {size} bytes; clients copy {least}"));
            }
            (Some(other), _) => found.push(format!("{name} is {other:?}; it must be {wanted:?}")),
        }
    }
    for name in face.defined.keys().filter(|name| !name.starts_with("GC_")) {
        found
            .push(format!("{name} is exported: only GC_* names may be, others would catch calls of the whole process"));
    }
    found.extend(calls_of_the_allocator(face));
    if face.soname.as_deref() != Some(SONAME) {
        let is = face.soname.as_deref().unwrap_or("missing");
        found.push(format!("the soname is {is}; clients ask for {SONAME}: link with -Wl,-soname,{SONAME}"));
    }
    if face.has_versions {
        found.push("the symbols have versions; those of Debian's library have none".to_owned());
    }
    found
}

fn face_of(library: &Path) -> Result<Face> {
    let bytes = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    read_face(&bytes).with_context(|| format!("{} is not a readable shared object", library.display()))
}

fn read_face(bytes: &[u8]) -> Result<Face> {
    let file = ElfFile64::<Endianness>::parse(bytes)?;
    let endian = file.endian();
    let sections = file.elf_section_table();
    let mut face = Face::default();

    let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM)?;
    for symbol in symbols.iter().skip(1) {
        let name = String::from_utf8_lossy(symbols.symbol_name(endian, symbol)?).into_owned();
        if symbol.is_undefined(endian) {
            face.undefined.push(name);
        } else if symbol.st_bind() != STB_LOCAL {
            let class = match symbol.st_type() {
                STT_FUNC | STT_GNU_IFUNC => Class::Function,
                STT_OBJECT => Class::Data(symbol.st_size(endian)),
                other => Class::Other(other),
            };
            face.defined.insert(name, class);
        }
    }

    let (dynamic, strings) = sections.dynamic(endian, bytes)?.ok_or_else(|| anyhow!("it has no dynamic section"))?;
    let strings = sections.strings(endian, bytes, strings)?;
    let soname = dynamic.iter().find(|entry| entry.d_tag(endian) == elf::DT_SONAME);
    if let Some(entry) = soname {
        let name = entry.string(endian, strings).context("its soname is not a string")?;
        face.soname = Some(String::from_utf8_lossy(name).into_owned());
    }
    face.has_versions = sections.iter().any(|section| section.sh_type(endian) == SHT_GNU_VERDEF);
    Ok(face)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Face {
        fn define(&mut self, name: &str, class: Class) {
            self.defined.insert(name.to_owned(), class);
        }
    }

    fn complete() -> Face {
        let defined = listed().expect("the list is well formed").into_iter();
        let defined = defined.map(|(name, class)| (name.to_owned(), class)).collect();
        Face { defined, undefined: vec!["memcpy".into()], soname: Some(SONAME.into()), has_versions: false }
    }

    fn violations_with(change: impl FnOnce(&mut Face)) -> Vec<String> {
        let mut face = complete();
        change(&mut face);
        violations(&face, &listed().expect("the list is well formed"))
    }

    #[test]
    fn the_list_has_all_of_debians_symbols() {
        let list = listed().expect("the list is well formed");
        assert_eq!(list.len(), 291);
        assert_eq!(list["GC_malloc"], Class::Function);
        assert_eq!(list["GC_dont_gc"], Class::Data(4));
    }

    #[test]
    fn a_complete_face_is_good() {
        assert_eq!(violations_with(|_| {}), Vec::<String>::new());
        let larger = violations_with(|face| face.define("GC_gc_no", Class::Data(64)));
        assert_eq!(larger, Vec::<String>::new());
    }

    #[test]
    fn the_operators_are_all_there_and_alone() {
        let mut face = Face { soname: Some("libgccpp.so.1".into()), ..Face::default() };
        OPERATORS.iter().for_each(|name| face.define(name, Class::Function));
        assert_eq!(operator_violations(&face), Vec::<String>::new());
        face.define("malloc", Class::Function);
        face.defined.remove("_Znwm");
        let found = operator_violations(&face);
        assert!(found.len() == 2 && found[0].contains("_Znwm") && found[1].contains("malloc"), "{found:?}");
    }

    #[test]
    fn a_door_exports_what_its_header_declares() {
        let header = "/* foo_old(int) */\ntypedef void *(*foo_f)(int);\nstatic inline void foo_inline(int a)\n{\n    foo_call(a);\n}\n\
                      const foo_t *foo_one(foo_t *);\nint foo_two(foo_t *, int (*f)(void *),\n    void *);\nextern \"C\" {\n";
        let declared = declared(header, "foo_");
        assert_eq!(declared.iter().map(String::as_str).collect::<Vec<_>>(), ["foo_one", "foo_two"]);
        let mut face = Face { soname: Some("libfoo.so".into()), ..Face::default() };
        ["foo_one", "foo_two"].iter().for_each(|name| face.define(name, Class::Function));
        assert_eq!(door_violations(&face, "libfoo.so", &declared), Vec::<String>::new());
        face.define("foo_one", Class::Data(8));
        face.define("bar", Class::Function);
        face.undefined.push("calloc".into());
        face.soname = None;
        let found = door_violations(&face, "libfoo.so", &declared);
        let named = ["foo_one is in the header", "bar is exported", "calloc is called", "soname is missing"];
        assert!(found.len() == 4 && named.iter().zip(&found).all(|(word, line)| line.contains(word)), "{found:?}");
    }

    #[test]
    fn each_defect_is_named() {
        let one = |word: &str, change: fn(&mut Face)| {
            let found = violations_with(change);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(word), "{found:?} names {word}");
        };
        one("GC_malloc is missing", |face| face.defined.retain(|name, _| name != "GC_malloc"));
        one("GC_malloc is Data", |face| face.define("GC_malloc", Class::Data(8)));
        one("GC_gc_no has 4 bytes", |face| face.define("GC_gc_no", Class::Data(4)));
        one("GC_gc_no is Function", |face| face.define("GC_gc_no", Class::Function));
        one("memcpy is exported", |face| face.define("memcpy", Class::Function));
        one("free is called", |face| face.undefined.push("free".into()));
        one("soname is missing", |face| face.soname = None);
        one("soname is libother.so", |face| face.soname = Some("libother.so".into()));
        one("versions", |face| face.has_versions = true);
    }

    /// The list was made with `nm`; the reader must see the same in Debian's library, where that is installed.
    #[test]
    fn debians_library_has_the_face_of_the_list() {
        let library = Path::new("/usr/lib/x86_64-linux-gnu/libgc.so.1");
        if !library.exists() {
            println!("skipped: libgc1 is not installed (apt-get install libgc1)");
            return;
        }
        let mut face = face_of(library).expect("Debian's library is readable");
        // Left by its linker, and what only our runtime must not do.
        face.defined.retain(|name, _| name.starts_with("GC_"));
        face.undefined.clear();
        assert_eq!(violations(&face, &listed().expect("the list is well formed")), Vec::<String>::new());
    }
}
