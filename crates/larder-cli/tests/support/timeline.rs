//! A trace as a viewer reads it.

use serde_json::Value;

/// A slice of a track, in nanoseconds.
pub struct Slice {
    pub pid: u32,
    pub track: u64,
    pub name: String,
    pub start: u64,
    pub end: u64,
    pub args: Value,
}

/// The slices and the counters of a trace.
pub struct Timeline {
    slices: Vec<Slice>,
    events: Vec<Value>,
}

impl Timeline {
    /// Reads the text of a file.
    pub fn read(text: &str) -> Self {
        let events: Vec<Value> = serde_json::from_str(text).expect("a trace is a JSON array");
        let slices = events.iter().filter(|event| event["ph"] == "X").map(Slice::new).collect();
        Timeline { slices, events }
    }

    /// The slices of a process with a name, in their order.
    pub fn slices(&self, pid: u32, name: &str) -> Vec<&Slice> {
        self.slices.iter().filter(|slice| slice.pid == pid && slice.name == name).collect()
    }

    /// The values of a counter, in their order.
    pub fn counter(&self, pid: u32, name: &str) -> Vec<u64> {
        let is_it = |event: &&Value| event["ph"] == "C" && event["pid"] == pid && event["name"] == name;
        let value = |event: &Value| event["args"].as_object().unwrap().values().next().unwrap().as_u64().unwrap();
        self.events.iter().filter(is_it).map(value).collect()
    }

    /// What every trace keeps to: slices of a track lie apart or in one another, phases lie in a cycle, times to stop in a
    /// pause, and each track has a name.
    pub fn check(&self) {
        for slice in &self.slices {
            for other in self.slices.iter().filter(|other| (other.pid, other.track) == (slice.pid, slice.track)) {
                let apart = slice.end <= other.start || other.end <= slice.start;
                assert!(apart || slice.is_in(other) || other.is_in(slice), "{} crosses {}", slice.text(), other.text());
            }
            let is_cycle = |slice: &Slice| slice.name.ends_with(" cycle");
            let is_pause = |slice: &Slice| slice.name == "pause";
            let holders: Vec<&Slice> = match slice.track {
                1 if !is_pause(slice) => self.slices.iter().filter(|other| is_pause(other)).collect(),
                2 if !is_cycle(slice) => self.slices.iter().filter(|other| is_cycle(other)).collect(),
                _ => continue,
            };
            let held = holders.iter().any(|holder| holder.pid == slice.pid && slice.is_in(holder));
            assert!(held, "{} lies in nothing", slice.text());
        }
        for slice in &self.slices {
            let names = self.events.iter().filter(|event| {
                event["name"] == "thread_name" && event["pid"] == slice.pid && event["tid"] == slice.track
            });
            assert_eq!(names.count(), 1, "{}", slice.text());
        }
    }
}

impl Slice {
    fn new(event: &Value) -> Self {
        let nanos = |value: &Value| (value.as_f64().expect("a time is a number") * 1000.0).round() as u64;
        let start = nanos(&event["ts"]);
        Slice {
            pid: event["pid"].as_u64().unwrap() as u32,
            track: event["tid"].as_u64().unwrap(),
            name: event["name"].as_str().unwrap().to_owned(),
            start,
            end: start + nanos(&event["dur"]),
            args: event["args"].clone(),
        }
    }

    fn is_in(&self, other: &Slice) -> bool {
        other.start <= self.start && self.end <= other.end
    }

    fn text(&self) -> String {
        format!("{} of {} at {} to {}", self.name, self.pid, self.start, self.end)
    }
}
