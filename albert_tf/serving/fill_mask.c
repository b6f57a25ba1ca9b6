/* Fills the masks of a text with an exported SavedModel, without Python.

   The C headers and libraries are part of the pip package of TensorFlow. The
   operations that tokenize are part of the pip package of tensorflow-text:

     SITE=$(python -c 'import site; print(site.getsitepackages()[0])')
     gcc -O2 -o fill_mask albert_tf/serving/fill_mask.c \
       -I$SITE/tensorflow/include -L$SITE/tensorflow \
       -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 \
       -Wl,-rpath,$SITE/tensorflow
     ./fill_mask build/demo/saved_model 'Paris is the [MASK] of France.' \
       $SITE/tensorflow_text/python/ops/_sentencepiece_tokenizer.so \
       $SITE/tensorflow_text/python/ops/_normalize_ops.so

   Prints a line for each mask: the most probable pieces and their
   probabilities. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

static const char kSignature[] = "fill_mask_text";

static void Fail(const char* what, const char* why) {
  fprintf(stderr, "error: %s: %s\n", what, why);
  exit(1);
}

static void Check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) Fail(what, TF_Message(status));
}

/* --- The tensors of a signature ---------------------------------------------

   The MetaGraphDef, a protocol buffer, names them. A protocol buffer is a list
   of fields, each a tag and a value; only strings and messages matter here. */

typedef struct {
  const uint8_t* begin;
  const uint8_t* end;
} Bytes;

static uint64_t ReadVarint(Bytes* from) {
  uint64_t value = 0;
  for (int shift = 0; from->begin < from->end && shift < 64; shift += 7) {
    uint8_t byte = *from->begin++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  Fail("MetaGraphDef", "a number does not end");
  return 0;
}

/* Reads a field and advances `from`. Returns the number of the field, 0 at the
   end. `content` is empty, except for strings and messages. */
static uint64_t ReadField(Bytes* from, Bytes* content) {
  if (from->begin == from->end) return 0;
  uint64_t tag = ReadVarint(from);
  uint64_t size = 0;
  switch (tag & 7) {
    case 0:
      ReadVarint(from);
      break;
    case 1:
      size = 8;
      break;
    case 2:
      size = ReadVarint(from);
      break;
    case 5:
      size = 4;
      break;
    default:
      Fail("MetaGraphDef", "a field has an unknown type");
  }
  if (size > (uint64_t)(from->end - from->begin)) {
    Fail("MetaGraphDef", "a field is cut off");
  }
  content->begin = from->begin;
  content->end = from->begin += size;
  if ((tag & 7) != 2) content->end = content->begin;
  return tag >> 3;
}

static int Equals(Bytes bytes, const char* text) {
  size_t size = bytes.end - bytes.begin;
  return size == strlen(text) && memcmp(bytes.begin, text, size) == 0;
}

/* Returns the value of `key` in a map, the field `number` of a message. */
static Bytes FindInMap(Bytes message, uint64_t number, const char* key) {
  Bytes entry, part;
  for (uint64_t found; (found = ReadField(&message, &entry));) {
    if (found != number) continue;
    Bytes name = {0}, value = {0};
    for (uint64_t which; (which = ReadField(&entry, &part));) {
      if (which == 1) name = part;
      if (which == 2) value = part;
    }
    if (Equals(name, key)) return value;
  }
  Fail(key, "the SavedModel does not have it; was it exported for text?");
  return message;
}

/* Returns the tensor `key` among the inputs (field 1 of a SignatureDef) or the
   outputs (field 2) of `signature`. Field 1 of a TensorInfo is its name. */
static TF_Output FindTensor(TF_Graph* graph, Bytes signature, uint64_t number,
                            const char* key) {
  Bytes info = FindInMap(signature, number, key);
  Bytes name = {0}, part;
  for (uint64_t which; (which = ReadField(&info, &part));) {
    if (which == 1) name = part;
  }
  char operation[512];
  snprintf(operation, sizeof(operation), "%.*s", (int)(name.end - name.begin),
           (const char*)name.begin);
  char* colon = strrchr(operation, ':');
  if (!colon) Fail(key, "its tensor has no name");
  *colon = 0;
  TF_Output tensor = {TF_GraphOperationByName(graph, operation),
                      atoi(colon + 1)};
  if (!tensor.oper) Fail(operation, "not in the graph");
  return tensor;
}

/* --- The program ----------------------------------------------------------- */

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s SAVED_MODEL_DIR TEXT [OP_LIBRARY]...\n",
            argv[0]);
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  for (int i = 3; i < argc; ++i) {
    TF_LoadLibrary(argv[i], status);
    Check(status, argv[i]);
  }

  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Buffer* meta_graph = TF_NewBuffer();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(
      options, NULL, argv[1], tags, 1, graph, meta_graph, status);
  Check(status, argv[1]);

  /* Field 5 of a MetaGraphDef is the map of signatures. */
  const uint8_t* data = meta_graph->data;
  Bytes message = {data, data + meta_graph->length};
  Bytes signature = FindInMap(message, 5, kSignature);
  TF_Output inputs[] = {FindTensor(graph, signature, 1, "text")};
  TF_Output outputs[] = {FindTensor(graph, signature, 2, "top_pieces"),
                         FindTensor(graph, signature, 2, "top_probabilities")};

  const int64_t one[] = {1};
  TF_Tensor* text = TF_AllocateTensor(TF_STRING, one, 1, sizeof(TF_TString));
  TF_StringInit(TF_TensorData(text));
  TF_StringCopy(TF_TensorData(text), argv[2], strlen(argv[2]));

  TF_Tensor* answers[2];
  TF_SessionRun(session, NULL, inputs, &text, 1, outputs, answers, 2, NULL, 0,
                NULL, status);
  Check(status, kSignature);

  /* Both are (1, masks, top_k). */
  const TF_TString* pieces = TF_TensorData(answers[0]);
  const float* probabilities = TF_TensorData(answers[1]);
  const int64_t masks = TF_Dim(answers[0], 1), top_k = TF_Dim(answers[0], 2);
  for (int64_t i = 0; i < masks * top_k; ++i) {
    printf("%.*s %.1f%%%s", (int)TF_StringGetSize(&pieces[i]),
           TF_StringGetDataPointer(&pieces[i]), 100 * probabilities[i],
           (i + 1) % top_k ? "  " : "\n");
  }

  TF_StringDealloc(TF_TensorData(text));
  TF_DeleteTensor(text);
  TF_DeleteTensor(answers[0]);
  TF_DeleteTensor(answers[1]);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteBuffer(meta_graph);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
