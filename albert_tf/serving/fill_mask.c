/* Fills the masks of a text with an exported SavedModel, without Python.

   The C headers and libraries are part of the pip package of TensorFlow. The
   operations that tokenize are part of the pip package of tensorflow-text:

     SITE=$(python -c 'import site; print(site.getsitepackages()[0])')
     gcc -O2 -o fill_mask albert_tf/serving/fill_mask.c \
       -I$SITE/tensorflow/include -L$SITE/tensorflow \
       -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 \
       -Wl,-rpath,$SITE/tensorflow

   The tensors of the signature have other names in each export. This prints
   them:

     saved_model_cli show --dir export/albert/1 --tag_set serve \
       --signature_def fill_mask_text
     ./fill_mask export/albert/1 'Paris is the [MASK] of France.' \
       fill_mask_text_text:0 StatefulPartitionedCall_3:0 \
       StatefulPartitionedCall_3:1 \
       $SITE/tensorflow_text/python/ops/_sentencepiece_tokenizer.so \
       $SITE/tensorflow_text/python/ops/_normalize_ops.so

   Prints a line for each mask: the most probable pieces and their
   probabilities. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

static void Fail(const char* what, const char* why) {
  fprintf(stderr, "error: %s: %s\n", what, why);
  exit(1);
}

static void Check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) Fail(what, TF_Message(status));
}

/* Finds a tensor by its name, OPERATION:INDEX. */
static TF_Output FindTensor(TF_Graph* graph, char* name) {
  char* colon = strrchr(name, ':');
  if (!colon) Fail(name, "must be OPERATION:INDEX");
  *colon = 0;
  TF_Output tensor = {TF_GraphOperationByName(graph, name), atoi(colon + 1)};
  if (!tensor.oper) Fail(name, "not in the graph");
  return tensor;
}

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr,
            "usage: %s SAVED_MODEL_DIR TEXT INPUT TOP_PIECES "
            "TOP_PROBABILITIES [OP_LIBRARY]...\n",
            argv[0]);
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  for (int i = 6; i < argc; ++i) {
    TF_LoadLibrary(argv[i], status);
    Check(status, argv[i]);
  }
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(
      options, NULL, argv[1], tags, 1, graph, NULL, status);
  Check(status, argv[1]);
  TF_Output input = FindTensor(graph, argv[3]);
  TF_Output outputs[] = {FindTensor(graph, argv[4]),
                         FindTensor(graph, argv[5])};

  const int64_t one[] = {1};
  TF_Tensor* text = TF_AllocateTensor(TF_STRING, one, 1, sizeof(TF_TString));
  TF_StringInit(TF_TensorData(text));
  TF_StringCopy(TF_TensorData(text), argv[2], strlen(argv[2]));
  TF_Tensor* answers[2];
  TF_SessionRun(session, NULL, &input, &text, 1, outputs, answers, 2, NULL, 0,
                NULL, status);
  Check(status, argv[2]);

  /* Both are (1, masks, top_k). */
  const TF_TString* pieces = TF_TensorData(answers[0]);
  const float* probabilities = TF_TensorData(answers[1]);
  const int64_t masks = TF_Dim(answers[0], 1), top_k = TF_Dim(answers[0], 2);
  for (int64_t i = 0; i < masks * top_k; ++i) {
    printf("%.*s %.1f%%%s", (int)TF_StringGetSize(&pieces[i]),
           TF_StringGetDataPointer(&pieces[i]), 100 * probabilities[i],
           (i + 1) % top_k ? "  " : "\n");
  }
  TF_CloseSession(session, status);
  return 0;
}
