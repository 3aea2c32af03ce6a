"""Recipes: contracts, assignments, round trips."""

import dataclasses
import importlib

import pytest
from pydantic import ValidationError

from scripts.common.errors import UserError
from scripts.common.model import build_model
from scripts.common.recipe import (
    ModelRecipe,
    OptimRecipe,
    Recipe,
    assign,
    differences,
    field_paths,
    load_recipe,
    read_recipe,
    recipe_names,
    write_recipe,
)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_states_its_contract_and_builds(name):
    module = importlib.import_module(f"scripts.recipes.{name}")
    for heading in ("Source: ", "Expected: ", "Hardware: ", f"Command: python -m scripts.train --recipe {name}"):
        assert heading in module.__doc__, heading
    build_model(module.RECIPE.model, ["a", "b", "c"])


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_comes_back_from_its_file(name, tmp_path):
    recipe = load_recipe(name, ["model.config.drop_path_rate=0.2", "optim.betas=[0.9, 0.95]", "data.test=x"])
    write_recipe(recipe, tmp_path / "recipe.json")
    assert read_recipe(tmp_path / "recipe.json") == recipe


@pytest.mark.parametrize("assignment, value", [
    ("optim.lr=1e-3", 1e-3), ("optim.lr=1", 1.0), ("run.epochs=3", 3.0), ("optim.batch_size=16", 16),
    ("optim.betas=[0.8,0.9]", (0.8, 0.9)), ("data.train=12", "12"), ("data.train=a=b", "a=b"), ("data.test=none", None),
    ("model.variant=none", None), ("augment.policy=rand_augment", "rand_augment"), ("run.precision=bf16", "bf16"),
    ("data.train=true", "true"),
])  # fmt: skip
def test_a_field_takes_a_value_of_its_type(assignment, value):
    recipe = load_recipe("finetune", [assignment])
    section, field = assignment.partition("=")[0].split(".")
    found = getattr(getattr(recipe, section), field)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("assignment", [
    "optim.batch_size=0", "optim.batch_size=-8", "optim.accumulation_steps=0", "optim.lr=-1", "optim.lr=inf", "optim.betas=[1,2]",
    "optim.clip_norm=0", "run.epochs=nan", "run.epochs=0", "run.seed=-1", "run.keep=0", "run.log_every=0", "data.workers=-1",
    "data.validation_fraction=0", "data.validation_fraction=1", "augment.horizontal_flip=2", "augment.rotation=-3",
    "schedule.warmup=5",
])  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(assignment):
    with pytest.raises(UserError, match=f"--set {assignment.partition('=')[0]}=.*(greater|less|finite)") as caught:
        load_recipe("finetune", [assignment])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("assignment, named", [
    ("augment.crop_scale=[0.9,0.2]", "lower end first"), ("augment.crop_scale=[0.5,2]", "less than or equal to 1"),
    ("augment.crop_ratio=[2,1]", "lower end first"),
])  # fmt: skip
def test_ranges_the_wrong_way_round_are_refused(assignment, named):
    with pytest.raises(UserError, match=named):
        load_recipe("finetune", [assignment])


def test_a_recipe_file_is_checked_like_the_command_line():
    for options in ({"batch_size": 0}, {"lr": "fast"}, {"lrr": 1.0}):
        with pytest.raises(ValidationError):
            OptimRecipe(**options)
    recipe = Recipe(model=ModelRecipe(config={"image_size": (16, 24)}))
    assert differences(recipe, Recipe(model=ModelRecipe(config={"image_size": [16, 24]}))) == []


def test_none_is_a_kind_of_position_too():
    for assignment in ("model.config.position_embedding=none", "model.config.prefix_positions=none"):
        assert load_recipe("finetune", [assignment]).model.config.popitem()[1] == "none"
    assert (
        load_recipe("finetune", ["model.config.representation_size=null"]).model.config["representation_size"] is None
    )


def test_fields_of_the_model_s_configuration_are_open():
    config = load_recipe("finetune", ["model.config.pooling=mean", "model.config.image_size=[32, 48]"]).model.config
    assert config["pooling"] == "mean" and config["image_size"] == [32, 48]


@pytest.mark.parametrize("assignment, named", [
    ("optim.lrr=1", "optim.lr"), ("optim.learning_rate=1", "optim.lr"), ("lr=1", "optim.lr"), ("optim.lr.x=1", "no such field"),
    ("optim.lr=fast", "optim.lr=fast"), ("optim.batch_size=1.5", "batch_size=1.5"), ("run.precision=fp8", "bf16"),
    ("optim.betas=[1]", "betas"), ("optim.lr", "path=value"), ("model.variant", "path=value"),
])  # fmt: skip
def test_a_wrong_assignment_is_an_error_that_names_it(assignment, named):
    with pytest.raises(UserError, match=named.replace("[", r"\[")):
        load_recipe("finetune", [assignment])


def test_an_unknown_recipe_lists_the_near_ones():
    with pytest.raises(UserError, match="did you mean 'digits'"):
        load_recipe("digit")


def test_a_wrong_field_of_the_configuration_names_it():
    recipe = load_recipe("finetune", ["model.config.hiden_size=3"])
    with pytest.raises(UserError, match="hiden_size.*hidden_size"):
        build_model(recipe.model, ["a", "b"])


def test_recipes_are_frozen_and_differences_are_found():
    recipe = Recipe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.optim.lr = 1.0
    assert differences(recipe, recipe) == []
    assert differences(recipe, assign(recipe, "optim.lr", "2e-3")) == ["optim.lr: 0.001 -> 0.002"]
    assert "model.config" in field_paths(recipe)


def test_a_file_of_another_version_is_refused_by_name(tmp_path):
    for content, named in (
        ('{"optim": {"lr": "fast"}}', "optim.lr"),
        ('{"optim": {"lrr": 1}}', "optim.lrr"),
        ("{", "JSON"),
    ):
        (tmp_path / "recipe.json").write_text(content)
        with pytest.raises(UserError, match=rf"recipe\.json: .*{named}") as caught:
            read_recipe(tmp_path / "recipe.json")
        assert "http" not in str(caught.value)
