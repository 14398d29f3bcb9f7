//! `larder demo`: one real program, compiled here, on Larder and on the installed libgc in turn.
//!
//! The program and its headers travel inside the tool, so that a C compiler is all it needs.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::Failure;
use crate::follow::Records;
use crate::launch::{self, Folder, Output};
use crate::library::{self, Library};
use crate::{doctor, program, say};

const SOURCES: [(&str, &str); 9] = [
    ("nbody.c", include_str!("../../../apps/gc/nbody.c")),
    ("bodies.h", include_str!("../../../apps/gc/bodies.h")),
    ("barrier.h", include_str!("../../../apps/gc/barrier.h")),
    ("report.h", include_str!("../../../apps/gc/report.h")),
    ("gc.h", include_str!("../../../include/gc.h")),
    ("gc/gc.h", include_str!("../../../include/gc/gc.h")),
    ("gc/gc_version.h", include_str!("../../../include/gc/gc_version.h")),
    ("gc/gc_config_macros.h", include_str!("../../../include/gc/gc_config_macros.h")),
    ("gc/gc_pthread_redirects.h", include_str!("../../../include/gc/gc_pthread_redirects.h")),
];
const COMPILERS: [&str; 3] = ["cc", "gcc", "clang"];

/// Arguments of `larder demo`.
#[derive(Args)]
pub struct DemoArguments {
    /// Threads that build the tree and calculate forces
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Bodies that attract each other
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    bodies: u32,
    /// Steps of the simulation
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    steps: u32,
    /// How often each library runs it; the table has the medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// The figures of one run, by key.
type Figures = HashMap<String, String>;

/// One library that takes part.
struct Side {
    name: &'static str,
    library: Library,
    runs: Vec<Figures>,
}

/// Compiles, runs, and prints the comparison on standard output.
pub fn run(arguments: &DemoArguments) -> Result<u8, Failure> {
    let library = library::find()?;
    let compiler = find_compiler()?;
    let stock = doctor::stock_libgc().and_then(|path| path.parent().map(Path::to_owned));
    let mut sides = vec![Side { name: "Larder", library: library.clone(), runs: Vec::new() }];
    match stock {
        // With LARDER_LIB set to the installed library there is nothing to compare.
        Some(folder) if fs::canonicalize(&folder).is_ok_and(|folder| folder == library.folder) => {}
        Some(folder) => sides.push(Side { name: "stock libgc", library: Library { folder }, runs: Vec::new() }),
        None => note!("no libgc is installed to compare with (Debian: apt install libgc1)"),
    }
    let folder = Folder::create()?;
    let bar = ProgressBar::new(1 + u64::from(arguments.rounds) * sides.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template"));
    let say = |text: String| {
        // Where standard error is no terminal there is no bar, and a line a step instead.
        if bar.is_hidden() {
            note!("{text}");
        }
        bar.set_message(text);
        bar.tick();
    };
    say("compiling the simulation".to_owned());
    let binary = compile(&compiler, &folder.path, &library)?;
    bar.inc(1);
    for round in 0..arguments.rounds as usize {
        // The order alternates, so that neither library always has the quieter machine.
        for turn in 0..sides.len() {
            let count = sides.len();
            let side = &mut sides[(turn + round) % count];
            say(format!("{}, round {} of {}", side.name, round + 1, arguments.rounds));
            let figures = measure(&binary, arguments, side).inspect_err(|_| bar.finish_and_clear())?;
            side.runs.push(figures);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    check_sums(&sides)?;
    say::print(&table(arguments, &sides))?;
    Ok(0)
}

fn find_compiler() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("CC").filter(|name| !name.is_empty());
    let names = named.clone().into_iter().chain(COMPILERS.iter().map(OsString::from));
    names.into_iter().find_map(|name| program::find(&name).ok()).ok_or_else(|| {
        Failure::tool("the demo needs a C compiler, and none of cc, gcc and clang was found in PATH (Debian: apt install gcc libc6-dev)")
    })
}

fn compile(compiler: &Path, folder: &Path, library: &Library) -> Result<PathBuf, Failure> {
    let cannot = |at: &Path, error| Failure::tool(format!("{} cannot be written: {error}", at.display()));
    let headers = folder.join("gc");
    fs::create_dir_all(&headers).map_err(|error| cannot(&headers, error))?;
    for (name, text) in SOURCES {
        let at = folder.join(name);
        fs::write(&at, text).map_err(|error| cannot(&at, error))?;
    }
    let binary = folder.join("nbody");
    let output = Command::new(compiler)
        .args(["-O2", "-pthread", "-I"])
        .arg(folder)
        .arg(folder.join("nbody.c"))
        .arg("-o")
        .arg(&binary)
        .arg("-L")
        .arg(&library.folder)
        .args(["-l:libgc.so.1", "-lm"])
        .output()
        .map_err(|error| Failure::tool(format!("{}: {error}", compiler.display())))?;
    if !output.status.success() {
        return Err(Failure::tool(format!(
            "{} could not compile the demo ({}): are the C headers installed (Debian: apt install libc6-dev)? It said:\n{}",
            compiler.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        )));
    }
    Ok(binary)
}

fn measure(binary: &Path, arguments: &DemoArguments, side: &Side) -> Result<Figures, Failure> {
    let command: Vec<OsString> = [
        binary.as_os_str().to_owned(),
        arguments.threads.to_string().into(),
        arguments.bodies.to_string().into(),
        arguments.steps.to_string().into(),
    ]
    .into();
    let mut text = String::new();
    let outcome = launch::run(binary, &command, &side.library, &[], Records::default(), Output::Captured(&mut text))?;
    if outcome.status != 0 {
        return Err(Failure::tool(format!(
            "the simulation on {} ended with status {}: see what it said above",
            side.name, outcome.status
        )));
    }
    let figures: Figures =
        text.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
    for key in ["sum", "seconds", "body_steps_per_s", "gcs", "pause_p50_ms", "pause_max_ms", "rss_mb"] {
        if !figures.contains_key(key) {
            return Err(Failure::tool(format!("the simulation on {} printed no {key}: {text}", side.name)));
        }
    }
    Ok(figures)
}

/// The simulation is the same to the last bit on every library, or an object was damaged.
fn check_sums(sides: &[Side]) -> Result<(), Failure> {
    let sums: Vec<_> =
        sides.iter().flat_map(|side| side.runs.iter().map(move |run| (side.name, &run["sum"]))).collect();
    match sums.iter().find(|(_, sum)| *sum != sums[0].1) {
        None => Ok(()),
        Some((name, sum)) => Err(Failure::tool(format!(
            "the results differ: {} on {}, {sum} on {name}: please report this as a bug, with the output of `larder doctor`",
            sums[0].1, sums[0].0
        ))),
    }
}

fn table(arguments: &DemoArguments, sides: &[Side]) -> String {
    const COLUMNS: [(&str, &str, f64, usize); 6] = [
        ("time, s", "seconds", 1.0, 2),
        ("speed, 1000 body steps/s", "body_steps_per_s", 1e-3, 0),
        ("collections", "gcs", 1.0, 0),
        ("pause p50, ms", "pause_p50_ms", 1.0, 2),
        ("longest pause, ms", "pause_max_ms", 1.0, 2),
        ("peak memory, MiB", "rss_mb", 1.0, 1),
    ];
    let mut out = format!(
        "Barnes-Hut simulation of {} bodies, {} steps, {} threads; median of {} rounds (range); the results agree to the last bit\n\n",
        arguments.bodies, arguments.steps, arguments.threads, arguments.rounds
    );
    out += &format!("{:26}", "");
    for side in sides {
        out += &format!("{:>26}", side.name);
    }
    out += "\n";
    for (title, key, scale, decimals) in COLUMNS {
        out += &format!("{title:26}");
        for side in sides {
            let mut values: Vec<f64> =
                side.runs.iter().map(|run| run[key].parse::<f64>().unwrap_or(f64::NAN) * scale).collect();
            values.sort_by(f64::total_cmp);
            let (least, most) = (values[0], values[values.len() - 1]);
            let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
            out += &format!("{:>26}", format!("{median:.decimals$} ({least:.decimals$}-{most:.decimals$})"));
        }
        out += "\n";
    }
    out
}
