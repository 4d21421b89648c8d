import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig

from openrlhf_cov.experiments.tiny_task.tokenizer import CHARACTERS, build_tokenizer

TOKENIZER = build_tokenizer(max_length=96)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    LlamaConfig().save_pretrained(folder)  # as in a model folder, where the architecture must not pick the tokenizer
    return AutoTokenizer.from_pretrained(folder)


def test_ids_by_hand():
    # <pad> 0, <eos> 1, then the digits 0-9 as 2-11, + as 12, = as 13
    assert TOKENIZER.encode("34+57=<eos>") == [5, 6, 12, 7, 9, 13, 1]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, len(TOKENIZER)) == (0, 1, 21)


def test_loaded_tokenizer_is_the_saved_one(loaded):
    assert loaded.get_vocab() == TOKENIZER.get_vocab()
    assert (loaded.pad_token, loaded.eos_token, loaded.bos_token) == ("<pad>", "<eos>", None)
    assert loaded.padding_side == "left"
    assert loaded.model_max_length == 96


def test_batch_is_padded_on_the_left_and_has_no_token_type_ids(loaded):
    assert dict(loaded(["1+2=", "34+57="], padding=True)) == {
        "input_ids": [[0, 0, 3, 12, 4, 13], [5, 6, 12, 7, 9, 13]],
        "attention_mask": [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
    }


def test_special_tokens_are_literal_unless_skipped(loaded):
    ids = [0, 7, 9, 1]
    assert loaded.decode(ids, skip_special_tokens=False) == "<pad>57<eos>"
    assert loaded.decode(ids, skip_special_tokens=True) == "57"


@given(text=st.text(CHARACTERS))
def test_round_trip_is_exact(loaded, text):
    ids = loaded.encode(text)
    assert len(ids) == len(text)
    assert loaded.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["a", "1\n", "٣"])
def test_unknown_character_raises(loaded, text):
    with pytest.raises(Exception, match="Missing"):  # the tokenizers library raises a bare Exception
        loaded.encode(text)
