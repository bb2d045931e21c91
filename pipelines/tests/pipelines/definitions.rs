//! Every fault of a definition has a place, a reason and, where there is one, a way out.

use std::path::Path;

use proptest::prelude::*;
use weft_pipelines::definition::{self, StageKind};
use weft_pipelines::{Arity, Diagnostic, check};

const SAMPLES: [&str; 5] = [
    include_str!("../../../samples/pipelines/describe.yaml"),
    include_str!("../../../samples/pipelines/caption.yaml"),
    include_str!("../../../samples/pipelines/chat.yaml"),
    include_str!("../../../samples/pipelines/transcribe.yaml"),
    include_str!("../../../samples/pipelines/transcribe-then-ask.yaml"),
];

#[test]
fn every_sample_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/pipelines");
    assert_eq!(check(&folder), []);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), SAMPLES.len());
    let ask = definition::parse("transcribe-then-ask.yaml", SAMPLES[4]).unwrap();
    assert_eq!(ask.name, "transcribe-then-ask");
    assert_eq!(
        (ask.inputs.audios, ask.inputs.prompt, ask.inputs.images),
        (Arity::Required, Arity::Optional, Arity::None)
    );
    let StageKind::Generate(answer) = &ask.stages[ask.output].kind else { panic!("{ask:?}") };
    assert_eq!((answer.uses.as_slice(), answer.options.max_tokens), (&[0][..], Some(200)));
}

/// A definition with one line put in place of another.
fn changed(from: &str, to: &str) -> String {
    assert!(SAMPLES[0].contains(from), "{from}");
    SAMPLES[0].replacen(from, to, 1)
}

fn fault(yaml: &str) -> Diagnostic {
    definition::parse("p.yaml", yaml).expect_err("this definition is wrong")
}

/// The diagnostic points at `at` and holds all of `texts`.
#[track_caller]
fn points(yaml: &str, at: &str, texts: &[&str]) {
    let fault = fault(yaml);
    let line = yaml.lines().nth(fault.line - 1).unwrap_or_default();
    let rest: String = line.chars().skip(fault.column - 1).collect();
    assert!(rest.starts_with(at), "{fault}\npoints at {rest:?}, not at {at:?}");
    for text in texts {
        assert!(fault.to_string().contains(text), "{fault}\nlacks {text:?}");
    }
    assert!(fault.to_string().starts_with(&format!("p.yaml:{}:{}: ", fault.line, fault.column)));
}

#[test]
fn unknown_names_are_refused_where_they_stand() {
    points(&changed("stages:\n", "stagse:\n"), "stagse", &["unknown field `stagse`", "did you mean `stages`?"]);
    points(&changed("stages:\n", "steps:\n"), "steps", &["unknown field `steps`", "it is called `stages`"]);
    points(&changed("    kind: generate", "    type: generate"), "type", &["it is called `kind`"]);
    points(&changed("max_tokens: 128", "max_new_tokens: 128"), "max_new_tokens", &["it is called `max_tokens`"]);
    points(&changed("kind: audio", "kind: adio"), "adio", &["did you mean `audio`?"]);
    points(&changed("[picture, clip]", "[pictur, clip]"), "pictur", &["no stage `pictur`", "did you mean `picture`?"]);
    points(&changed("model: omni", "model: onmi"), "onmi", &["did you mean `omni`?"]);
    points(&changed("output: answer", "output: answr"), "answr", &["did you mean `answer`?"]);
    points(&changed("inputs.prompt }}", "inputs.promt }}"), "promt", &["no input `promt`", "did you mean `prompt`?"]);
    points(&changed("{{ inputs.prompt }}", "{{ anser.output }}"), "anser", &["no stage `anser`"]);
    points(&changed("images: many", "images: lots"), "lots", &["known here", "many"]);
}

#[test]
fn wrong_types_are_refused_where_they_stand() {
    let text = "  - id: note\n    kind: text\n    template: hi {{ inputs.prompt }}\n\n  - id: answer\n";
    let text = changed("  - id: answer\n", text).replacen("[picture, clip]", "[picture, note, clip]", 1);
    points(&text, "note, clip", &["makes text", "{{ note.output }}"]);
    points(
        &changed("{{ inputs.prompt }}", "{{ inputs.prompt }} {{ picture.output }}"),
        "picture",
        &["makes pictures", "media: [picture]"],
    );
    points(&changed("{{ inputs.prompt }}", "{{ inputs.images }}"), "images", &["which a template cannot hold"]);
    points(&changed("output: answer", "output: clip"), "clip", &["makes no text"]);
    points(&changed("max_tokens: 128", "temperature: 3.5"), "temperature", &["temperature is 3.5", "0 to 2"]);
    points(&changed("max_tokens: 128", "max_tokens: many"), "many", &[]);
    points(
        &changed("kind: image # works on inputs.images", "kind: image\n    from: inputs.audios"),
        "inputs.audios",
        &["works on `inputs.images`"],
    );
    points(
        &changed("kind: image # works on inputs.images", "kind: image\n    media: [clip]"),
        "media",
        &["has no field `media`", "it has: id, kind, from"],
    );
}

#[test]
fn broken_graphs_are_refused_where_they_break() {
    points(&changed("id: clip", "id: picture"), "picture", &["taken by the stage in line"]);
    points(&changed("id: clip", "id: my-clip"), "my-clip", &["cannot be a stage's id"]);
    points(&changed("[picture, clip]", "[picture]"), "clip", &["nothing uses stage `clip`"]);
    points(&changed("{{ inputs.prompt }}", "hello"), "prompt", &["takes `prompt`, but no stage uses it"]);
    points(&changed("  images: many", "  images: none"), "id: picture", &["which the pipeline does not take"]);
    points(&changed("{{ inputs.prompt }}", "{{ inputs.prompt }} {{ answer.output }}"), "answer", &["answer -> answer"]);
    let around = "version: 1\nstages:\n  - id: a\n    kind: text\n    template: \"{{ b.output }}\"\n  - id: b\n    kind: text\n    template: |\n      one\n      {{ a.output }}\noutput: a\n";
    points(around, "a.output", &["stages wait for each other: a -> b -> a"]);
    let two = "version: 1\nname: two\nstages:\n  - id: a\n    kind: text\n    template: x\n  - id: b\n    kind: text\n    template: y\n";
    points(two, "b", &["which stage is the output: a or b?", "add `output: b`"]);
}

#[test]
fn broken_files_are_refused_where_they_break() {
    points("stages: []\n", "stages", &["`version` is missing", "version: 1"]);
    points("version: 2\nthings: []\n", "2", &["version 2 is not known"]);
    points("version: 1\n", "version", &["`stages` is missing"]);
    points("version: 1\nstages: []\n", "stages", &["at least one stage"]);
    points("version: 1\nversion: 1\nstages: []\n", "version", &["twice"]);
    points("version: 1\nstages:\n  - id: a\n    kind: text\n    template: \"{{ oops\"\n", "\"{{ oops", &["not valid"]);
    let block = "version: 1\nstages:\n  - id: a\n    kind: text\n    template: |\n      fine\n      {% if %}\n";
    assert_eq!(fault(block).line, 7);
    assert!(definition::parse("p.yaml", "a: [b\n").is_err());
    assert!(definition::parse("p.yaml", "").is_err());
    assert_eq!(fault("version: 1\nname: Not Fine\nstages:\n  - id: a\n    kind: text\n    template: x\n").line, 2);
}

#[test]
fn the_schema_describes_the_format() {
    let schema = definition::schema().to_string();
    for word in ["stages", "transcribe", "conversation", "max_tokens", "optional", "Pipeline"] {
        assert!(schema.contains(word), "the schema lacks {word}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Random damage never panics, and what is refused has a place in the file.
    #[test]
    fn damaged_definitions_are_refused_with_a_place(
        sample in 0..SAMPLES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..4, "[ -~\\n:\\[\\]{}&*|>éé]{0,6}"), 1..6),
    ) {
        let mut text: Vec<char> = SAMPLES[sample].chars().collect();
        for (at, cut, put) in edits {
            let at = at.index(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, put.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(faults) = definition::parse_all("p.yaml", &text) {
            prop_assert!(!faults.is_empty());
            for fault in faults {
                prop_assert!(fault.line >= 1 && fault.column >= 1 && !fault.message.is_empty());
                prop_assert!(fault.line <= text.lines().count() + 1, "{fault} of {} lines", text.lines().count());
            }
        }
    }
}

#[test]
fn a_drawing_shows_every_stage_and_edge() {
    let drawing = definition::parse("describe.yaml", SAMPLES[0]).unwrap().draw();
    assert!(drawing.starts_with("<svg") && drawing.ends_with("</svg>\n"), "{drawing}");
    for word in ["images", "audios", "prompt", "picture", "clip", "answer", "generate with qwen2.5-omni-3b"] {
        assert!(drawing.contains(&format!(">{word}<")), "the drawing lacks {word}");
    }
    assert_eq!(drawing.matches("marker-end").count(), 5);
}
