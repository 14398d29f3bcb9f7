//! Runs a workload on our moving heap (`apps/vm`, in C) or on HotSpot (`apps/java`), with heaps of the same sizes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::log::{Collections, Log};
use crate::exit::Failure;
use crate::launch::{self, Folder};
use crate::library;
use crate::program;

/// The programs travel inside the tool; javac compiles them.
const SOURCES: [(&str, &str); 6] = [
    ("Vm.java", include_str!("../../../../../apps/java/Vm.java")),
    ("Trees.java", include_str!("../../../../../apps/java/Trees.java")),
    ("Cache.java", include_str!("../../../../../apps/java/Cache.java")),
    ("Warehouse.java", include_str!("../../../../../apps/java/Warehouse.java")),
    ("Compiler.java", include_str!("../../../../../apps/java/Compiler.java")),
    ("Chat.java", include_str!("../../../../../apps/java/Chat.java")),
];
/// What adds options of somebody's to every Java program.
const JAVA_VARIABLES: [&str; 3] = ["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"];
/// Young collections that an object survives before it is old. HotSpot counts those that copy it within the young generation, one less.
const TENURE: usize = 2;
/// The most that either is asked for.
const MOST_COLLECTORS: usize = 16;

/// Whose heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Our moving heap.
    Larder,
    /// HotSpot's parallel collector.
    Parallel,
    /// HotSpot's default one.
    G1,
}

impl Contender {
    /// All of them, ours first.
    pub const ALL: [Self; 3] = [Self::Larder, Self::Parallel, Self::G1];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Larder => "Larder",
            Self::Parallel => "ParallelGC",
            Self::G1 => "G1",
        }
    }
}

/// A workload of a size, with a heap of a size.
#[derive(Clone, Debug)]
pub struct Load {
    /// The program, as it is called in `apps/vm`.
    pub program: &'static str,
    /// Its arguments.
    pub sizes: Vec<String>,
    /// Threads; `chat` has them by its rooms.
    pub threads: usize,
    /// The whole young generation, eden and survivors.
    pub young_mib: usize,
    /// The old generation.
    pub old_mib: usize,
    /// Untimed runs before the timed one, in Java.
    pub warm: usize,
}

impl Load {
    fn shown(&self) -> String {
        format!("{} {} with {} threads", self.program, self.sizes.join(" "), self.threads)
    }
}

/// What one run said.
#[derive(Clone, Debug)]
pub struct Measured {
    printed: HashMap<String, String>,
    /// What its collections did.
    pub collections: Collections,
}

impl Measured {
    /// A figure that the program printed.
    pub fn printed(&self, key: &str) -> f64 {
        self.printed.get(key).and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
    }

    /// The checksum, and the number of operations.
    pub fn result(&self) -> String {
        let of = |key| self.printed.get(key).map_or("nothing", String::as_str);
        format!("{} of {} operations", of("checksum"), of("operations"))
    }

    /// Everything.
    pub fn json(&self) -> Value {
        let c = &self.collections;
        json!({
            "printed": self.printed,
            "collections": {
                "young": c.young, "full": c.full, "other": c.other, "pause_ms": c.pause_ms, "work_ms": c.work_ms,
                "young_pause_ms": c.young_pause_ms, "longest_young_ms": c.longest_young_ms, "longest_ms": c.longest_ms, "concurrent_ms": c.concurrent_ms,
            },
        })
    }
}

/// Where the programs are.
pub struct Machines {
    native: PathBuf,
    java: PathBuf,
    version: String,
    /// Holds the classes, and the logs.
    folder: Folder,
}

impl Machines {
    /// Finds and compiles everything, or says what is missing.
    pub fn new() -> Result<Self, Failure> {
        let java = find("java")?;
        let javac = find("javac")?;
        let native = native()?;
        let folder = Folder::create()?;
        compile(&javac, &folder.path)?;
        let version = version(&java)?;
        Ok(Self { native, java, version, folder })
    }

    /// The virtual machine's name and version.
    pub fn java_version(&self) -> &str {
        &self.version
    }

    /// Runs a workload once.
    pub fn run(&self, load: &Load, contender: Contender) -> Result<Measured, Failure> {
        match contender {
            Contender::Larder => self.run_native(load),
            Contender::Parallel | Contender::G1 => self.run_java(load, contender),
        }
    }

    fn run_native(&self, load: &Load) -> Result<Measured, Failure> {
        let mut command = Command::new(self.native.join(load.program));
        launch::forget_heap_variables(&mut command);
        command
            .args(["--young-kib", &(load.young_mib << 10).to_string()])
            .args(["--old", &load.old_mib.to_string()])
            // As fixed as HotSpot's, and warmed up as Java is.
            .args(["--least-old", &load.old_mib.to_string(), "--warm"])
            .args(["--tenure", &TENURE.to_string()])
            .args(["--threads", &load.threads.to_string()])
            .args(&load.sizes);
        let printed = printed(&mut command, &load.shown())?;
        let of = |key: &str| printed.get(key).and_then(|value| value.parse::<f64>().ok()).unwrap_or(f64::NAN);
        // A full collection begins as a young one, and counts as both.
        let full = of("full") as usize;
        let collections = Collections {
            young: (of("young") as usize).saturating_sub(full),
            full,
            other: 0,
            pause_ms: of("pause_ms"),
            work_ms: of("pause_ms") - of("stopping_ms"),
            young_pause_ms: of("young_pause_ms"),
            longest_young_ms: of("longest_young_ms"),
            longest_ms: of("longest_ms"),
            concurrent_ms: 0.0,
        };
        Ok(Measured { printed, collections })
    }

    fn run_java(&self, load: &Load, contender: Contender) -> Result<Measured, Failure> {
        let log = self.folder.path.join("gc.log");
        let mut command = Command::new(&self.java);
        JAVA_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
        command
            .args(java_options(load, contender))
            // What `gc*` would add is written within the pauses, and would make them longer.
            .args(["-Xlog:gc,safepoint:file=gc.log:timenanos:filecount=0", "-cp", "."])
            .current_dir(&self.folder.path)
            .arg(load.program[..1].to_uppercase() + &load.program[1..])
            .args(["--warm", &load.warm.to_string(), "--threads", &load.threads.to_string()])
            .args(&load.sizes);
        let printed = printed(&mut command, &load.shown())?;
        let at = |key: &str| {
            printed
                .get(key)
                .and_then(|value| value.parse::<u64>().ok())
                .ok_or_else(|| Failure::tool(format!("{} in Java printed no {key}", load.program)))
        };
        let text = fs::read_to_string(&log)
            .map_err(|error| Failure::tool(format!("{} of {}: {error}", log.display(), self.java.display())))?;
        let collections = Log::read(&text).between(at("begun_ns")?, at("ended_ns")?);
        Ok(Measured { printed, collections })
    }
}

/// The options that make HotSpot's heap like ours: fixed, with references of eight bytes, and as many objects.
pub fn java_options(load: &Load, contender: Contender) -> Vec<String> {
    let collectors = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_COLLECTORS);
    let heap = load.young_mib + load.old_mib;
    let mut options = match contender {
        Contender::G1 => vec!["-XX:+UseG1GC".to_owned()],
        _ => vec!["-XX:+UseParallelGC".to_owned(), "-XX:-UseAdaptiveSizePolicy".to_owned()],
    };
    options.extend(["-XX:-UseCompressedOops".to_owned(), "-XX:-DoEscapeAnalysis".to_owned()]);
    options.push(format!("-XX:ParallelGCThreads={collectors}"));
    options.push(format!("-Xmn{}m", load.young_mib));
    options.extend([format!("-Xms{heap}m"), format!("-Xmx{heap}m")]);
    options.push(format!("-XX:InitialTenuringThreshold={}", TENURE - 1));
    options.push(format!("-XX:MaxTenuringThreshold={}", TENURE - 1));
    options
}

/// The folder of the programs in C.
pub fn native() -> Result<PathBuf, Failure> {
    let native = library::find()?.folder.parent().unwrap_or(Path::new("/")).join("apps/vm");
    if !native.is_dir() {
        return Err(Failure::tool(format!(
            "{} does not exist: the experiment needs the programs that `cargo xtask stage DIR` compiles (it needs a C compiler); run \
             DIR/bin/larder, or set {} to DIR/lib",
            native.display(),
            library::FOLDER_VARIABLE
        )));
    }
    Ok(native)
}

/// A program of the JDK, of `JAVA_HOME` or in PATH.
fn find(name: &str) -> Result<PathBuf, Failure> {
    let home = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
    let of_home = home.map(|home| Path::new(&home).join("bin").join(name)).filter(|path| path.is_file());
    let found = of_home.or_else(|| program::find(name.as_ref()).ok());
    found.and_then(|path| std::path::absolute(path).ok()).ok_or_else(|| {
        Failure::tool(format!(
            "the experiment compares with HotSpot, and {name} was found neither in JAVA_HOME nor in PATH (Debian: apt install \
             openjdk-17-jdk-headless)"
        ))
    })
}

fn compile(javac: &Path, folder: &Path) -> Result<(), Failure> {
    let mut command = Command::new(javac);
    JAVA_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    command.arg("-d").arg(folder);
    for (name, text) in SOURCES {
        let at = folder.join(name);
        fs::write(&at, text)
            .map_err(|error| Failure::tool(format!("{} cannot be written: {error}: set TMPDIR", at.display())))?;
        command.arg(at);
    }
    let output = command.output().map_err(|error| Failure::tool(format!("{}: {error}", javac.display())))?;
    if !output.status.success() {
        return Err(Failure::tool(format!(
            "{} could not compile the programs ({}): is it of Java 17 or later? It said:\n{}",
            javac.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        )));
    }
    Ok(())
}

/// The last line of `java -version`: the virtual machine's.
fn version(java: &Path) -> Result<String, Failure> {
    let mut command = Command::new(java);
    JAVA_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    let output =
        command.arg("-version").output().map_err(|error| Failure::tool(format!("{}: {error}", java.display())))?;
    Ok(String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or("an unknown virtual machine").to_owned())
}

/// Runs a program that prints one line of `key=value`.
pub fn printed(command: &mut Command, what: &str) -> Result<HashMap<String, String>, Failure> {
    let path = command.get_program().to_owned();
    let shown = Path::new(&path).display();
    let output = command.output().map_err(|error| Failure::tool(format!("{shown}: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let what = || format!("{what} on {shown}");
    if !output.status.success() {
        return Err(Failure::tool(format!(
            "{} failed ({}): {}{}",
            what(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end(),
            text.trim_end()
        )));
    }
    let printed: HashMap<String, String> =
        text.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
    for key in ["checksum", "operations", "seconds", "cpu_s", "allocated_mib"] {
        if !printed.contains_key(key) {
            return Err(Failure::tool(format!("{} printed no {key}: {}", what(), text.trim_end())));
        }
    }
    Ok(printed)
}
