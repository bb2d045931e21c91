//! The whole definition, from as written to resolved.

use std::path::Path;

use super::diagnostic::Diagnostic;
use super::graph::{Definition, Inputs, Stage, StageKind};
use super::order::{self, Edges};
use super::raw::RawPipeline;
use super::source::{Place, Source};
use super::stage::{Scope, Type, Used};
use crate::summary::Arity;

/// Names that mean something else in templates.
const RESERVED: &[&str] = &["inputs", "loop", "true", "false", "none", "not", "and", "or", "in", "is", "if", "else"];

pub(super) fn resolve(source: &Source<'_>, raw: RawPipeline) -> Result<Definition, Vec<Diagnostic>> {
    let mut faults = Vec::new();
    let name = name(source, &raw).unwrap_or_else(|fault| {
        faults.push(fault);
        String::new()
    });
    if raw.inputs.prompt == Arity::Many {
        let place = source.find(source.find(Place::START, "inputs"), "prompt");
        let fault = source.fault(place, "a request has at most one prompt");
        faults.push(fault.remedy("write `prompt: required` or `prompt: optional`".to_owned()));
    }
    for (alias, used) in &raw.models {
        if used.value.candidates().iter().all(|name| name.trim().is_empty()) {
            faults.push(source.fault(Place::of(used.referenced), format!("`{alias}` names no model")));
        }
    }
    check_ids(source, &raw, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let types: Vec<(String, Type)> =
        raw.stages.iter().map(|stage| (stage.value.id.value.clone(), Type::of(stage.value.kind.value))).collect();
    let scope = Scope { source, raw: &raw, stages: &types };
    let mut used = Used::default();
    let mut edges: Vec<Edges> = Vec::new();
    let mut kinds = Vec::new();
    for stage in &raw.stages {
        let mut own = Edges::new();
        match scope.stage(stage, &mut own, &mut used) {
            Ok(kind) => kinds.push(kind),
            Err(fault) => faults.push(fault),
        }
        edges.push(own);
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let order = order::order(&edges).map_err(|(around, place)| {
        let path: Vec<&str> = around.iter().map(|&at| types[at].0.as_str()).collect();
        vec![source.fault(place, format!("stages wait for each other: {}", path.join(" -> ")))]
    })?;
    let output = output(&scope, &edges).map_err(|fault| vec![fault])?;
    faults.extend(unused(&scope, &edges, output, used));
    if !faults.is_empty() {
        return Err(faults);
    }
    let inputs = Inputs {
        images: raw.inputs.images,
        audios: raw.inputs.audios,
        prompt: raw.inputs.prompt,
        conversation: used.conversation,
    };
    let (stages, output) = reordered(kinds, &types, &order, output);
    Ok(Definition {
        name,
        description: raw.description.trim().to_owned(),
        source: source.file.to_owned(),
        inputs,
        stages,
        output,
    })
}

/// The stated name, else the file's.
fn name(source: &Source<'_>, raw: &RawPipeline) -> Result<String, Diagnostic> {
    let fine = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|first| first.is_ascii_lowercase() || first.is_ascii_digit())
            && chars.all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || matches!(char, '-' | '_'))
            && name.len() <= 64
    };
    let (name, place) = match &raw.name {
        Some(name) => (name.value.clone(), Place::of(name.referenced)),
        None => {
            let stem = Path::new(source.file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            (stem.unwrap_or_default(), Place::START)
        }
    };
    if fine(&name) {
        return Ok(name);
    }
    let fault = source.fault(place, format!("`{name}` cannot be a pipeline's name"));
    Err(fault.remedy("use lower-case letters, digits, `-` and `_`, at most 64".to_owned()))
}

fn check_ids(source: &Source<'_>, raw: &RawPipeline, faults: &mut Vec<Diagnostic>) {
    if raw.stages.is_empty() {
        faults.push(source.fault(source.find(Place::START, "stages"), "a pipeline needs at least one stage"));
    }
    for (at, stage) in raw.stages.iter().enumerate() {
        let id = &stage.value.id;
        let place = Place::of(id.referenced);
        let mut chars = id.value.chars();
        let fine = chars.next().is_some_and(|first| first.is_ascii_lowercase())
            && chars.all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_');
        if !fine {
            let fault = source.fault(place, format!("`{}` cannot be a stage's id", id.value));
            faults.push(fault.remedy(
                "templates use it: begin with a letter, then letters, digits and `_`, all lower-case".to_owned(),
            ));
        } else if RESERVED.contains(&id.value.as_str()) {
            faults.push(source.fault(place, format!("`{}` means something else in templates", id.value)));
        }
        if let Some(first) = raw.stages[..at].iter().find(|other| other.value.id.value == id.value) {
            let line = Place::of(first.value.id.referenced).line;
            faults.push(source.fault(place, format!("the id `{}` is taken by the stage in line {line}", id.value)));
        }
    }
}

/// Place of the output stage in the file's order.
fn output(scope: &Scope<'_>, edges: &[Edges]) -> Result<usize, Diagnostic> {
    let source = scope.source;
    if let Some(output) = &scope.raw.output {
        let place = Place::of(output.referenced);
        let id = output.value.trim();
        let (at, kind) = scope.find(id, place)?;
        if kind != Type::Text {
            return Err(source.fault(place, format!("`{id}` makes no text, so it cannot be the output")));
        }
        return Ok(at);
    }
    let used = |at: usize| edges.iter().flatten().any(|&(used, _)| used == at);
    let ends: Vec<usize> =
        (0..scope.stages.len()).filter(|&at| scope.stages[at].1 == Type::Text && !used(at)).collect();
    match ends.as_slice() {
        [only] => Ok(*only),
        [] => Err(source.fault(source.find(Place::START, "stages"), "no stage makes text: there is no output")),
        [_, second, ..] => {
            let names: Vec<&str> = ends.iter().map(|&at| scope.stages[at].0.as_str()).collect();
            let place = Place::of(scope.raw.stages[*second].value.id.referenced);
            let fault = source.fault(place, format!("which stage is the output: {}?", names.join(" or ")));
            Err(fault.remedy(format!("add `output: {}`", names[names.len() - 1])))
        }
    }
}

/// What would be read and then silently dropped.
fn unused(scope: &Scope<'_>, edges: &[Edges], output: usize, used: Used) -> Vec<Diagnostic> {
    let source = scope.source;
    let mut faults = Vec::new();
    for (at, stage) in scope.raw.stages.iter().enumerate() {
        if at != output && !edges.iter().flatten().any(|&(used, _)| used == at) {
            let id = &stage.value.id;
            faults.push(source.fault(Place::of(id.referenced), format!("nothing uses stage `{}`", id.value)));
        }
    }
    let inputs = &scope.raw.inputs;
    let taken = [
        ("images", inputs.images, used.images),
        ("audios", inputs.audios, used.audios),
        ("prompt", inputs.prompt, used.prompt),
    ];
    for (name, arity, used) in taken {
        if arity != Arity::None && !used {
            let place = source.find(source.find(Place::START, "inputs"), name);
            faults.push(source.fault(place, format!("the pipeline takes `{name}`, but no stage uses it")));
        }
    }
    for (alias, model) in &scope.raw.models {
        let used =
            scope.raw.stages.iter().any(|stage| stage.value.model.as_ref().is_some_and(|name| name.value == *alias));
        if !used {
            let place = source.find(source.find(Place::START, "models"), alias);
            let place = if place == Place::START { Place::of(model.referenced) } else { place };
            faults.push(source.fault(place, format!("no stage uses the model `{alias}`")));
        }
    }
    faults
}

/// Stages in running order, with their references moved along.
fn reordered(kinds: Vec<StageKind>, types: &[(String, Type)], order: &[usize], output: usize) -> (Vec<Stage>, usize) {
    let mut moved = vec![0; order.len()];
    for (new, &old) in order.iter().enumerate() {
        moved[old] = new;
    }
    let shift = |places: Vec<usize>| places.into_iter().map(|old| moved[old]).collect::<Vec<usize>>();
    let mut stages: Vec<Stage> = kinds
        .into_iter()
        .zip(types)
        .map(|(kind, (id, _))| {
            let kind = match kind {
                StageKind::Generate(mut generate) => {
                    generate.media = shift(generate.media);
                    generate.uses = shift(generate.uses);
                    StageKind::Generate(generate)
                }
                StageKind::Text { template, uses } => StageKind::Text { template, uses: shift(uses) },
                other => other,
            };
            Stage { id: id.clone(), kind }
        })
        .collect();
    // Sorting by the new place is the move itself.
    let mut places = moved.clone();
    for at in 0..places.len() {
        while places[at] != at {
            let to = places[at];
            stages.swap(at, to);
            places.swap(at, to);
        }
    }
    (stages, moved[output])
}
